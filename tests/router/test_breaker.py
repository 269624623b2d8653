"""Breaker, retry budget and slow start, by a clock that the test moves."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest

from router.breaker import FAILURES, LONGEST_REST, Breaker, BreakerState
from router.eligibility import Eligibility
from router.retry_budget import MOST, PER_SECOND, RetryBudget

CLOSED, OPEN, HALF_OPEN = BreakerState


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def send(breaker, *, sound):
    trial = breaker.began()
    (breaker.succeeded if sound else breaker.failed)(trial)


def opened(clock):
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        send(breaker, sound=False)
    return breaker


def test_r9_a_half_open_breaker_closes_after_successes(clock):
    breaker = opened(clock)
    assert (breaker.state, breaker.allows) == (OPEN, False)
    clock.now += 1.01
    assert (breaker.state, breaker.allows) == (HALF_OPEN, True)
    send(breaker, sound=True)
    assert breaker.state is HALF_OPEN
    send(breaker, sound=True)
    assert breaker.state is CLOSED


def test_r9_one_trial_at_a_time_and_an_abandoned_one_blocks_nothing(clock):
    breaker = opened(clock)
    clock.now += 1.01
    trial = breaker.began()
    assert (trial, breaker.allows) == (True, False)
    breaker.abandoned(trial)
    assert breaker.allows


def test_a_failed_trial_opens_it_for_twice_as_long_up_to_a_bound(clock):
    breaker = opened(clock)
    rest = 1.0
    for _ in range(8):
        clock.now += rest + 0.01
        assert breaker.state is HALF_OPEN
        send(breaker, sound=False)
        rest = min(2 * rest, LONGEST_REST)
        clock.now += rest - 0.1
        assert breaker.state is OPEN
        clock.now -= rest - 0.1


def test_only_failures_in_a_row_count_and_none_from_before(clock):
    breaker = Breaker(clock)
    for _ in range(3 * FAILURES):
        send(breaker, sound=False)
        send(breaker, sound=True)
    assert breaker.state is CLOSED
    breaker = opened(clock)
    breaker.succeeded(False)  # calls that were sent before it opened
    breaker.failed(False)
    clock.now += 1.01
    assert breaker.state is HALF_OPEN
    breaker.reset()
    assert breaker.state is CLOSED


def test_retries_are_a_share_of_the_requests_and_a_few_a_second(clock):
    budget = RetryBudget(0.2, clock)
    assert withdraw_all(budget) == MOST
    for _ in range(100):
        budget.deposit()
    assert withdraw_all(budget) in (19, 20)
    clock.now += 3
    assert withdraw_all(budget) in (3 * PER_SECOND - 1, 3 * PER_SECOND)
    clock.now += 3600
    assert budget.left == MOST


def withdraw_all(budget):
    count = 0
    while budget.can_withdraw:
        budget.withdraw()
        count += 1
    return count


def fleet(clock):
    eligibility = Eligibility(10.0, clock, random.Random(1))
    nodes = [SimpleNamespace(name=name, breaker=Breaker(clock), joined=None) for name in "ab"]
    for node in nodes:
        eligibility.joined(node)
    return eligibility, nodes


def turns(eligibility, nodes, count=1000):
    return Counter(node.name for _ in range(count) for node in eligibility.of(nodes))


def test_a_node_that_joins_a_running_fleet_starts_slowly(clock):
    eligibility, (old, new) = fleet(clock)
    assert turns(eligibility, [old, new]) == {"a": 1000, "b": 1000}  # began together
    clock.now += 60
    eligibility.joined(new)
    shares = []
    for _ in range(3):
        shares.append(turns(eligibility, [old, new])["b"])
        clock.now += 4.5
    assert 50 < shares[0] < 150 < 350 < shares[1] < 550 < 800 < shares[2] < 1000
    assert turns(eligibility, [old, new]) == {"a": 1000, "b": 1000}


def test_a_new_node_serves_when_no_other_can(clock):
    eligibility, (old, new) = fleet(clock)
    clock.now += 60
    eligibility.joined(new)
    assert turns(eligibility, [new]) == {"b": 1000}
    for _ in range(FAILURES):
        send(old.breaker, sound=False)
    assert turns(eligibility, [old, new]) == {"b": 1000}

"""The ledger counts what is held and nothing else, whatever the order of events."""

import random

import pytest

from kvmesh.errors import RequestError
from router.ledger import Change, Ledger


def reserve(ledger, request_id, node="a", attempt=1):
    return ledger.reserve(request_id, attempt, node, prefill_tokens=100, blocks=10)


def test_only_what_the_node_has_not_counted_is_added():
    ledger = Ledger()
    first, second = reserve(ledger, "1"), reserve(ledger, "2")
    assert (first.sequence, second.sequence) == (1, 2)
    assert ledger.since_report("a") == Change(requests=2, prefill_tokens=200, blocks=20)
    ledger.report("a", 1)
    assert ledger.since_report("a") == Change(requests=1, prefill_tokens=100, blocks=10)
    ledger.report("a", 2)
    assert ledger.since_report("a") == Change()
    assert ledger.since_report("b") == Change()


def test_the_prefill_share_goes_at_the_first_token_the_blocks_at_the_end():
    ledger = Ledger()
    held = reserve(ledger, "1")
    ledger.prefilled(held)
    ledger.prefilled(held)
    assert ledger.since_report("a") == Change(requests=1, prefill_tokens=0, blocks=10)
    ledger.release(held)
    assert ledger.since_report("a") == Change()
    assert ledger.idle


def test_what_the_node_has_counted_and_has_ended_since_is_taken_off():
    ledger = Ledger()
    held = reserve(ledger, "1")
    ledger.report("a", 1)
    ledger.prefilled(held)
    assert ledger.since_report("a") == Change(prefill_tokens=-100)
    ledger.release(held)
    ledger.release(held)
    assert ledger.since_report("a") == Change(requests=-1, prefill_tokens=-100, blocks=-10)
    ledger.report("a", 1)
    assert ledger.since_report("a") == Change()


def test_a_restarted_node_has_counted_nothing():
    ledger = Ledger()
    held = reserve(ledger, "1")
    ledger.report("a", 1)
    ledger.report("a", 0)
    assert ledger.since_report("a").requests == 1
    ledger.release(held)
    assert ledger.since_report("a") == Change()


def test_release_is_idempotent_and_touches_neither_the_next_attempt_nor_a_namesake():
    ledger = Ledger()
    first = reserve(ledger, "1")
    ledger.release(first)
    second = reserve(ledger, "1", attempt=2)
    ledger.release(first)
    assert ledger.in_flight("a") == 1
    ledger.release(second)
    namesake = reserve(ledger, "1")
    ledger.release(first)
    ledger.prefilled(first)
    assert ledger.since_report("a") == Change(requests=1, prefill_tokens=100, blocks=10)
    ledger.release(namesake)
    assert ledger.in_flight("a") == 0


def test_a_request_is_held_once():
    ledger = Ledger()
    reserve(ledger, "1")
    with pytest.raises(RequestError, match="in flight"):
        reserve(ledger, "1", "b")


def test_r6_any_order_of_events_ends_at_zero():
    rng, ledger, made = random.Random(5), Ledger(), []
    for step in range(2000):
        if rng.random() < 0.4 or not made:
            made.append(reserve(ledger, str(step), rng.choice("abc"), rng.randint(1, 3)))
        else:
            rng.choice((ledger.prefilled, ledger.release))(rng.choice(made))
        if rng.random() < 0.2:
            ledger.report(rng.choice("abc"), rng.randint(0, step))
        ledger.check_integrity()
        for node in "abc":
            ledger.since_report(node)
        assert all(ledger.in_flight(node) >= 0 for node in "abc")
    for each in made:
        ledger.release(each)
    assert ledger.idle
    for node in "abc":
        ledger.report(node, 2000)
    assert all(ledger.since_report(node) == Change() for node in "abc")

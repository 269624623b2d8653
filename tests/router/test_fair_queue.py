"""Who starts next, whoever sends how much."""

import random
from collections import Counter

import pytest

from router.fair_queue import MAX_OVERTAKES, QUANTUM, FairQueue, PriorityClass, Waiter
from router.request_size import RequestSize
from router.watermark import Wait

SIZE = RequestSize(100, 100, 1, 16)


def waiter(tenant, cost=100, *, weight=1.0, priority=0, size=SIZE):
    return Waiter(tenant, weight, PriorityClass.of(priority), cost, size, 0.0, 10.0)


def fill(queue, tenant, count, **options):
    for _ in range(count):
        assert queue.push(waiter(tenant, **options)) is None
    queue.check_integrity()


def started(queue, count, obstacle=lambda _: None):
    taken = [queue.pop(obstacle) for _ in range(count)]
    queue.check_integrity()
    return taken


def tokens(waiters):
    sums = Counter()
    for each in waiters:
        sums[each.tenant] += each.cost
    return sums


def test_tenants_start_as_many_tokens_whatever_their_requests_are_like():
    queue = FairQueue(2000)
    fill(queue, "long", 100, cost=2000)
    fill(queue, "short", 1000, cost=50)
    sums = tokens(started(queue, 400))
    assert abs(sums["long"] - sums["short"]) <= 2000 + QUANTUM


def test_a_weight_is_a_share():
    queue = FairQueue(2000)
    fill(queue, "three", 600, weight=3.0)
    fill(queue, "one", 600)
    sums = tokens(started(queue, 400))
    assert sums["three"] / sums["one"] == pytest.approx(3, rel=0.1)


def test_one_that_comes_late_waits_for_a_turn_not_for_the_queue():
    queue = FairQueue(1000)
    fill(queue, "greedy", 500, cost=300)
    started(queue, 7)
    modest = waiter("modest")
    queue.push(modest)
    assert queue.ahead_of(modest) == 1
    assert modest in started(queue, 4)


def test_inside_a_tenant_the_first_comes_first():
    queue = FairQueue(10)
    mine = [waiter("a", cost) for cost in (900, 1, 500)]
    for each in mine:
        queue.push(each)
    assert started(queue, 4) == [*mine, None]


def test_a_higher_class_goes_first_and_knows_no_turns():
    queue = FairQueue(100)
    fill(queue, "a", 3, priority=-5)
    fill(queue, "b", 3)
    fill(queue, "a", 3, priority=1)
    priorities = [each.priority for each in started(queue, 9)]
    assert priorities == sorted(priorities)


def test_a_full_queue_gives_up_the_newest_of_who_has_most_in_the_lowest_class():
    queue = FairQueue(6)
    fill(queue, "greedy", 5)
    newest = list(queue)[-1]
    fill(queue, "modest", 1)
    assert queue.push(waiter("modest")) is newest
    excess = waiter("greedy")
    assert queue.push(excess) is excess
    assert queue.push(waiter("third", priority=5)).tenant == "greedy"
    low = waiter("third", priority=-5)
    assert queue.push(low) is low
    queue.check_integrity()
    assert Counter(each.tenant for each in queue) == {"greedy": 3, "modest": 2, "third": 1}


@pytest.mark.parametrize("others", ["of another tenant", "its own tenant's"])
def test_a15_one_that_does_not_fit_is_passed_only_so_often(others):
    queue = FairQueue(1000)
    huge = waiter("a", size=RequestSize(10_000, 1, 1, 16))
    queue.push(huge)
    fill(queue, "a" if others == "its own tenant's" else "b", 200)

    def obstacle(each):
        return Wait.BLOCKS if each is huge else None

    passed = started(queue, MAX_OVERTAKES + 1, obstacle)
    assert None not in passed[:-1]
    assert passed[-1] is None
    assert huge.reason is Wait.BLOCKS
    assert queue.pop(lambda _: None) is huge


def test_no_more_than_the_look_ahead_are_tried():
    queue = FairQueue(1000)
    for number in range(100):
        fill(queue, f"tenant {number}", 1)
    tried = []
    assert queue.pop(lambda each: tried.append(each) or Wait.BLOCKS, 5) is None
    assert len(tried) == 5


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_the_books_are_right(seed):
    rng, queue, inside = random.Random(seed), FairQueue(40), []
    for _ in range(2000):
        action = rng.random()
        if action < 0.5:
            new = waiter(rng.choice("abcd"), rng.randint(1, 3000), priority=rng.randint(-1, 1))
            inside.append(new)
            if (excess := queue.push(new)) is not None:
                inside.remove(excess)
        elif action < 0.8:
            if (taken := queue.pop(lambda _: rng.choice([None, Wait.BLOCKS]))) is not None:
                inside.remove(taken)
        elif inside:
            queue.remove(inside.pop(rng.randrange(len(inside))))
        queue.check_integrity()
        assert len(queue) == len(inside)
    assert set(queue) == set(inside)

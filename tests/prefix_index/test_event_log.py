"""The node's account of its blocks: what subscribers are told, and when."""

import asyncio

from hypothesis import given

from kvmesh.v1.cache_node_pb2 import TIER_CPU, TIER_GPU
from prefix_index.event_log import EventLog
from prefix_index.events import Cleared, Removed, Stored
from tests.prefix_index.strategies import KEYS, steps

A, B = KEYS[:2]


def after_snapshot(log):
    subscription = log.subscribe()
    subscription.take()
    return subscription


def apply(held, events):
    """The naive model: a set of (key, tier)."""
    for event in events:
        match event:
            case Stored(key, tier):
                held.add((key, tier))
            case Removed(key, tier):
                held.discard((key, tier))
            case Cleared():
                held.clear()


def test_a_subscription_starts_with_a_snapshot_then_goes_on_with_deltas():
    log = EventLog(epoch=1)
    log.append([Stored(A, TIER_GPU)])
    subscription = log.subscribe()
    first = subscription.take()
    assert (first.snapshot, first.sequence, first.events) == (True, 1, [Stored(A, TIER_GPU)])
    assert subscription.take() is None

    log.append([Stored(B, TIER_CPU)])
    log.append([Removed(A, TIER_GPU)])
    delta = subscription.take()
    assert (delta.snapshot, delta.base, delta.sequence) == (False, 1, 3)
    assert delta.events == [Stored(B, TIER_CPU), Removed(A, TIER_GPU)]


def test_an_empty_log_gives_an_empty_snapshot():
    batch = EventLog(epoch=1).subscribe().take()
    assert (batch.snapshot, batch.sequence, batch.events) == (True, 0, [])


def test_copies_are_counted_by_tier():
    log = EventLog(epoch=1)
    subscription = after_snapshot(log)
    log.append([Stored(A, TIER_GPU), Stored(A, TIER_GPU), Stored(A, TIER_CPU)])
    assert subscription.take().events == [Stored(A, TIER_GPU), Stored(A, TIER_CPU)]
    log.append([Removed(A, TIER_GPU)])
    assert subscription.take() is None
    log.append([Removed(A, TIER_GPU)])
    assert subscription.take().events == [Removed(A, TIER_GPU)]
    assert log.snapshot().events == [Stored(A, TIER_CPU)]


def test_steps_that_change_nothing_are_not_counted():
    log = EventLog(epoch=1)
    log.append([])
    log.append([Cleared()])
    log.append([Removed(A, TIER_GPU)])
    assert log.sequence == 0


def test_a_lagging_subscriber_gets_a_snapshot():
    log = EventLog(epoch=1, max_pending=4)
    lagging, other = after_snapshot(log), after_snapshot(log)
    for key in KEYS[:4]:
        log.append([Stored(key, TIER_GPU)])
    other.take()
    log.append([Stored(KEYS[4], TIER_GPU)])
    batch = lagging.take()
    assert (batch.snapshot, batch.sequence, len(batch.events)) == (True, 5, 5)
    assert not other.take().snapshot
    log.append([Stored(KEYS[5], TIER_GPU)])
    assert not lagging.take().snapshot


def test_restart_gives_a_snapshot_again():
    log = EventLog(epoch=1)
    subscription = after_snapshot(log)
    subscription.restart()
    assert subscription.take().snapshot


def test_a_closed_subscription_is_let_go():
    log = EventLog(epoch=1)
    subscription = after_snapshot(log)
    subscription.close()
    subscription.close()
    log.append([Stored(A, TIER_GPU)])
    assert not log._subscriptions


async def test_next_waits_for_a_change():
    log = EventLog(epoch=1)
    subscription = after_snapshot(log)
    waiting = asyncio.create_task(subscription.next())
    await asyncio.sleep(0)
    assert not waiting.done()
    log.append([Stored(A, TIER_GPU)])
    assert (await waiting).events == [Stored(A, TIER_GPU)]


async def test_a_shared_event_wakes_for_events_too():
    changed = asyncio.Event()
    log = EventLog(epoch=1)
    subscription = log.subscribe(changed)
    assert changed.is_set()
    subscription.take()
    changed.clear()
    log.append([Stored(A, TIER_GPU)])
    assert changed.is_set()


@given(steps)
def test_all_readers_arrive_at_the_same_state(sequence):
    log = EventLog(epoch=1, max_pending=6)
    eager, lazy = log.subscribe(), after_snapshot(log)
    seen, late = set(), set()
    for events in sequence:
        log.append(events)
        if (batch := eager.take()) is not None:
            if batch.snapshot:
                seen.clear()
            apply(seen, batch.events)
    if (batch := lazy.take()) is not None:
        apply(late, batch.events)
    snapshot = {(event.key, event.tier) for event in log.snapshot().events}
    assert late == snapshot
    assert seen == snapshot or not sequence
    assert log.size == len(snapshot)

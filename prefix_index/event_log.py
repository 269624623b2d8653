"""The node's own account of its cached blocks, and the source of every feed.

engine step ──append──▶ EventLog ──┬─ Subscription ──▶ WatchState of a router (direct feed)
                                   └─ Subscription ──▶ RedisPublisher
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

import structlog

from prefix_index.batch import Batch
from prefix_index.events import TIERS, Cleared, Event, Removed, Stored, pack, pack_held

MAX_PENDING = 8192  # events; 17 bytes each when packed

log = structlog.get_logger(__name__)


class EventLog:
    """Counts the copies of each key in each tier, and tells subscribers when the first comes and
    the last goes.

    Lives on the node's event loop: not thread-safe. Owns the counts; a Subscription owns its
    pending events.
    """

    def __init__(self, epoch: int, *, max_pending: int = MAX_PENDING) -> None:
        """`max_pending` bounds the events that a slow subscriber can have waiting."""
        self.epoch = epoch
        self.max_pending = max_pending
        self._copies = {tier: Counter[bytes]() for tier in TIERS}
        self._subscriptions: list[Subscription] = []
        self._sequence = 0

    @property
    def sequence(self) -> int:
        """Number of the present state: how many appends have changed the set of keys."""
        return self._sequence

    @property
    def size(self) -> int:
        """How many (key, tier) pairs are stored."""
        return sum(len(copies) for copies in self._copies.values())

    def append(self, events: Sequence[Event]) -> None:
        """Takes what one engine step did, in order. Each copy of a block gives its own events.

        Never raises for what the events say: a removal of something that is not stored is logged
        and dropped.
        """
        changes = [event for event in events if self._count(event)]
        if not changes:
            return
        self._sequence += 1
        for subscription in self._subscriptions:
            subscription._push(changes)

    def subscribe(self, changed: asyncio.Event | None = None) -> "Subscription":
        """A source that starts with a snapshot. `changed`: see Subscription. Close it after use."""
        subscription = Subscription(self, changed or asyncio.Event())
        self._subscriptions.append(subscription)
        return subscription

    def snapshot(self) -> Batch:
        """The whole present state."""
        return Batch(0, self._sequence, True, pack_held(self._copies))

    def _count(self, event: Event) -> bool:
        """Whether the event changes the set of keys."""
        match event:
            case Stored(key, tier):
                self._copies[tier][key] += 1
                return self._copies[tier][key] == 1
            case Removed(key, tier):
                return self._remove(key, self._copies[tier])
            case Cleared():
                held = self.size
                for copies in self._copies.values():
                    copies.clear()
                return held > 0

    def _remove(self, key: bytes, copies: Counter[bytes]) -> bool:
        if key not in copies:
            log.warning("removed_block_was_not_stored", key=key.hex())
            return False
        copies[key] -= 1
        if copies[key] > 0:
            return False
        del copies[key]
        return True


class Subscription:
    """One reader of an EventLog: a snapshot first, then deltas. Steps that wait together become
    one delta.

    `changed` is set whenever there may be something to take. It is the subscriber's own, given to
    `subscribe`, when it waits for other things too; then it clears it before it takes:

        while True:
            changed.clear()
            send(load, subscription.take())
            await changed.wait()

    When more than the log's `max_pending` events wait, they are dropped and the next batch is a
    snapshot.
    """

    def __init__(self, source: EventLog, changed: asyncio.Event) -> None:
        self.changed = changed
        self._log = source
        self.restart()

    def restart(self) -> None:
        """The next batch is a snapshot: for a reader whose peer lost the state."""
        self._base: int | None = None  # None: a snapshot is due
        self._pending: list[Event] = []
        self.changed.set()

    def take(self) -> Batch | None:
        """What changed since the last batch, or None. Never blocks, does not clear `changed`."""
        base, pending = self._base, self._pending
        if base == self._log.sequence:
            return None
        self._base, self._pending = self._log.sequence, []
        if base is None:
            return self._log.snapshot()
        return Batch(base, self._log.sequence, False, pack(pending))

    async def next(self) -> Batch:
        """Waits for a change and takes it. Clears `changed`."""
        while True:
            self.changed.clear()
            if (batch := self.take()) is not None:
                return batch
            await self.changed.wait()

    def close(self) -> None:
        """Idempotent; nothing more comes."""
        if self in self._log._subscriptions:
            self._log._subscriptions.remove(self)

    def _push(self, changes: Sequence[Event]) -> None:
        if self._base is not None:
            self._pending.extend(changes)
            if len(self._pending) > self._log.max_pending:
                self.restart()
        self.changed.set()

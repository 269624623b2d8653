"""What routers hear of the leases that they have given out."""

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import generate_pb2

_Key = tuple[str, int]  # request id and attempt


class LeaseNews:
    """Which leases run, by router, and who of the routers must be told. On the event loop."""

    def __init__(self) -> None:
        self._running: defaultdict[str, set[_Key]] = defaultdict(set)
        self._subscriptions: defaultdict[str, set[LeaseSubscription]] = defaultdict(set)

    @contextmanager
    def running(self, message: pb.NodeGenerateRequest) -> Iterator[generate_pb2.Usage]:
        """A leased request runs inside; the block fills in what it took."""
        router, key = message.router_id, (message.request_id, message.attempt)
        usage = generate_pb2.Usage()
        self._running[router].add(key)
        self._tell(router, key, pb.LeaseReport(request_id=key[0], attempt=key[1]))
        try:
            yield usage
        finally:
            self._running[router].discard(key)
            if not self._running[router]:
                del self._running[router]
            ended = pb.LeaseReport(request_id=key[0], attempt=key[1], ended=True)
            if usage.prompt_tokens:
                ended.usage.CopyFrom(usage)
            self._tell(router, key, ended)

    def subscribe(self, router: str, changed: asyncio.Event) -> "LeaseSubscription":
        """Sets `changed` when there is something to take. Who subscribes closes it."""
        subscription = LeaseSubscription(changed, self._snapshot(router))
        self._subscriptions[router].add(subscription)
        return subscription

    def unsubscribe(self, router: str, subscription: "LeaseSubscription") -> None:
        self._subscriptions[router].discard(subscription)
        if not self._subscriptions[router]:
            del self._subscriptions[router]

    def _snapshot(self, router: str) -> dict[_Key, pb.LeaseReport]:
        running = self._running.get(router, ())
        return {
            (name, attempt): pb.LeaseReport(request_id=name, attempt=attempt)
            for name, attempt in running
        }

    def _tell(self, router: str, key: _Key, report: pb.LeaseReport) -> None:
        for subscription in self._subscriptions.get(router, ()):
            subscription.add(key, report)


class LeaseSubscription:
    """What one watching router has not been told yet: of each lease the last. The first thing told
    is all that runs.
    """

    def __init__(self, changed: asyncio.Event, snapshot: dict[_Key, pb.LeaseReport]) -> None:
        self._changed = changed
        self._reports = snapshot
        self._whole = True

    def add(self, key: _Key, report: pb.LeaseReport) -> None:
        self._reports[key] = report
        self._changed.set()

    def fill(self, state: pb.NodeState) -> None:
        """Moves the news into `state`."""
        state.leases.extend(self._reports.values())
        state.all_leases = self._whole
        self._reports, self._whole = {}, False

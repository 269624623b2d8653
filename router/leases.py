"""The leases of this router: places on nodes that clients claim by themselves.

    grant ──▶ unclaimed ──node: claimed──▶ claimed ──node: ended──▶ released
                 ├── expiry ─────────────────────────────────────────▶│
                 └── node lost, or routed again ◀── claimed ─────────▶│

A lease holds what a running request would: its reservation, and its place among the requests in
flight. All of it is released once, whichever way the lease ends. An unclaimed lease counts like a
dispatch that the node has not reported; once the node reports a later one, it counts no more until
its claim.
"""

import asyncio
import functools
import itertools
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from kvmesh.lease import LeaseKey
from kvmesh.v1 import cache_node_pb2 as node_pb
from kvmesh.v1.generate_pb2 import Summary
from router.holds import Holds
from router.metrics import RouterMetrics
from router.tenants import Tenant

SLACK = 1.0
"""Seconds beyond its expiry in which a claim may still be told by the node."""

TICK = 0.001
"""Seconds by which a timer of the event loop may come too early: uvloop counts in whole ones."""

REMEMBERED = 4096
"""Requests that have lost their lease, and may come for another."""

_Key = tuple[str, str, int]  # node, request id, attempt
_Request = tuple[str, str]  # the tenant's name, request id


class _Granted(NamedTuple):
    request: _Request
    holds: Holds


class Leases:
    """Lives on the event loop. `seconds` is how long a lease can be claimed."""

    def __init__(self, key: LeaseKey | None, seconds: float, metrics: RouterMetrics) -> None:
        self._key = key
        self.seconds = seconds
        self._metrics = metrics
        self._granted: dict[_Key, _Granted] = {}
        # When they expire, on the event loop's clock. All last as long: the first is the next.
        self._unclaimed: dict[_Key, float] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self._newest: dict[_Request, _Key] = {}
        # Attempts that may be followed by another, which must not have the same number.
        self._broken_off: OrderedDict[_Request, int] = OrderedDict()

    @property
    def enabled(self) -> bool:
        """Whether this router has the fleet's key."""
        return self._key is not None

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    @property
    def open(self) -> int:
        return len(self._granted)

    def grant(
        self,
        request: node_pb.NodeGenerateRequest,
        node: str,
        salt: bytes,
        holds: Holds,
    ) -> bytes:
        """A signed lease for `request` on the node called `node`. Takes over `holds`, which are
        closed when the lease ends, their charge told what it used.
        """
        assert self._key is not None
        lease = self._key.sign(request, node, salt, time.time() + self.seconds)
        key = (node, request.request_id, request.attempt)
        of = holds.charge.tenant.name, request.request_id
        self._granted[key] = _Granted(of, holds)
        self._unclaimed[key] = self._loop.time() + self.seconds + SLACK
        if self._expiry is None:
            self._await_expiry()
        self._newest[of] = key
        self._broken_off.pop(of, None)
        self._metrics.lease("granted")
        return lease

    def give_up(self, tenant: Tenant, request_id: str) -> int:
        """Ends the last lease of a request that is routed again. Returns its attempt, 0 without."""
        key = self._newest.get((tenant.name, request_id))
        if key is not None:
            self._end(key, "rerouted")
        return self._broken_off.get((tenant.name, request_id), 0)

    def apply(self, node: str, state: node_pb.NodeState) -> None:
        """What a state of the node called `node` tells of leases; idempotent."""
        for report in state.leases:
            key = (node, report.request_id, report.attempt)
            self._claim(key)
            if report.ended:
                self._metrics.used(report.usage)
                if key in self._granted:
                    holds = self._granted[key].holds
                    holds.charge.use(report.usage, 0)
                    if report.HasField("usage"):
                        holds.entry.summary = Summary(node=node, usage=report.usage)
                self._end(key, "ended")
        if state.all_leases:
            running = {(node, each.request_id, each.attempt) for each in state.leases}
            self._end_all(key for key in self._claimed_on(node) if key not in running)

    def lost(self, node: str) -> None:
        """The node is out of sight: what was claimed there counts for nothing. Its tenant does not
        pay for it, but for the request's next lease, which counts the output so far.
        """
        claimed = self._claimed_on(node)
        for key in claimed:
            self._granted[key].holds.charge.used = 0
        self._end_all(claimed)

    def _claimed_on(self, node: str) -> list[_Key]:
        return [key for key in self._granted if key[0] == node and key not in self._unclaimed]

    def _end_all(self, keys: Iterable[_Key]) -> None:
        for key in list(keys):
            self._end(key, "lost")

    def _claim(self, key: _Key) -> None:
        if self._unclaimed.pop(key, None) is not None:
            charge = self._granted[key].holds.charge
            charge.used = charge.expected  # until the node tells more
            self._metrics.lease("claimed")

    def _await_expiry(self) -> None:
        self._expiry = None
        for expires in self._unclaimed.values():
            self._expiry = self._loop.call_at(expires, self._expire)
            return

    def _expire(self) -> None:
        now = self._loop.time() + TICK
        due = itertools.takewhile(lambda each: each[1] <= now, self._unclaimed.items())
        try:
            for key, _ in list(due):
                self._end(key, "expired")
        finally:
            self._await_expiry()

    def _end(self, key: _Key, how: str) -> None:
        granted = self._granted.pop(key, None)
        if granted is None:
            return
        self._unclaimed.pop(key, None)
        if self._newest.get(granted.request) == key:
            del self._newest[granted.request]
            if how in ("rerouted", "lost"):
                self._break_off(granted.request, key[2])
        granted.holds.close()
        self._metrics.lease(how)

    def _break_off(self, request: _Request, attempt: int) -> None:
        self._broken_off[request] = attempt
        if len(self._broken_off) > REMEMBERED:
            self._broken_off.popitem(last=False)

"""Lets requests start while nodes have room for them; the others wait in the fair queue."""

import asyncio
from collections.abc import Callable

from kvmesh.errors import Code
from router.admission_metrics import AdmissionMetrics
from router.fair_queue import FairQueue, Waiter
from router.refused_error import RefusedError, refused
from router.registry import Registry
from router.request_size import RequestSize
from router.watermark import Wait, Watermark

PERIOD = 0.05  # seconds between two looks at the queue, whether anything has happened or not
TOGETHER = 0.002  # seconds in which events lead to one look
LOOK_AHEAD = 16  # requests that are tried at a look when those before them do not fit
RETRY = (1.0, 60.0)  # least and most seconds that a client is told to stay away


class StartGate:
    """A request that has passed must reserve its place on a node before it awaits anything.

        arrive ──room, nobody waits──────────────────────────────────▶ start
           └────▶ queue ──look: its turn, and a node has room──▶ on the way ──▶ start
                    └──pushed out, too late, no node──▶ refused

    Between its turn and its start others run; until then its blocks count on every node.
    """

    def __init__(
        self,
        registry: Registry,
        watermark: Watermark,
        queue: FairQueue,
        metrics: AdmissionMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._watermark = watermark
        self._queue = queue
        self._metrics = metrics
        self._clock = clock
        self._tickets: dict[Waiter, asyncio.Future[RefusedError | None]] = {}
        self._on_the_way: dict[Waiter, RequestSize] = {}
        self._pace = _Pace()
        self._looking = False

    async def start(self, waiter: Waiter) -> None:
        """Returns when the request may start. Raises RESOURCE_EXHAUSTED when the queue is full, or
        the request has waited for too long; UNAVAILABLE when no node is up.
        """
        if not self._registry.up:
            raise _nobody("no cache node is up")
        if not self._starts_at_once(waiter):
            await self._wait(waiter)
        now = self._clock()
        self._pace.started(now)
        self._metrics.started(waiter, now - waiter.arrived)

    def wake(self) -> None:
        """Something has happened: there will be a look soon."""
        if self._queue and not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(TOGETHER, self.look)

    def look(self) -> None:
        """Lets start whoever may. Never waits for an event to happen first."""
        self._looking = False
        if not self._registry.up:
            for waiter in list(self._queue):
                self._refuse(waiter, _nobody("no cache node is up any more"))
        while (first := self._queue.pop(self._obstacle, LOOK_AHEAD)) is not None:
            if not (ticket := self._tickets[first]).done():  # else its client has just left
                self._on_the_way[first] = first.size
                ticket.set_result(None)

    async def run(self) -> None:
        """Looks by time, for as long as the router lives."""
        while True:
            await asyncio.sleep(PERIOD)
            self.expire()
            self.look()

    def expire(self) -> None:
        """Refuses who cannot start in time any more."""
        now = self._clock()
        for waiter in [each for each in self._queue if each.start_by <= now]:
            waited = f"waited {now - waiter.arrived:.3g} s ({waiter.reason.value})"
            message = f"{waited} and cannot start in time any more, come back later"
            self._refuse(waiter, refused("too_late", message, self._retry()))

    def _starts_at_once(self, waiter: Waiter) -> bool:
        return not self._queue and not self._on_the_way and self._obstacle(waiter) is None

    async def _wait(self, waiter: Waiter) -> None:
        ticket = self._tickets[waiter] = asyncio.get_running_loop().create_future()
        excess = self._queue.push(waiter)
        if excess is not None:
            self._push_out(excess)
        else:
            self._metrics.queued(waiter, self._queue.ahead_of(waiter))
        self.look()
        try:
            if (error := await ticket) is not None:
                raise error
        except asyncio.CancelledError:
            if waiter in self._queue:
                self._queue.remove(waiter)
            raise
        finally:
            del self._tickets[waiter]
            self._on_the_way.pop(waiter, None)
            self.wake()

    def _obstacle(self, waiter: Waiter) -> Wait | None:
        nodes = (node for node in self._registry.up if node.breaker.allows)
        # None where there are none: placement has the words for it.
        return self._watermark.obstacle(nodes, waiter.size, self._on_the_way.values())

    def _push_out(self, waiter: Waiter) -> None:
        message = f"the queue is full with {len(self._queue)} requests, come back later"
        self._settle(waiter, refused("queue_full", message, self._retry()))

    def _refuse(self, waiter: Waiter, error: RefusedError) -> None:
        self._queue.remove(waiter)
        self._settle(waiter, error)

    def _settle(self, waiter: Waiter, error: RefusedError) -> None:
        self._metrics.left(waiter, self._clock() - waiter.arrived)
        if not (ticket := self._tickets[waiter]).done():
            ticket.set_result(error)

    def _retry(self) -> float:
        """Seconds in which as many will start as wait now, at the pace of late."""
        return min(max(self._pace.interval * len(self._queue), RETRY[0]), RETRY[1])


def _nobody(message: str) -> RefusedError:
    return RefusedError(Code.UNAVAILABLE, "no_node", message)


class _Pace:
    """How often requests start."""

    def __init__(self) -> None:
        self.interval = 0.0  # seconds between two, in the mean of the last ten or so
        self._last: float | None = None

    def started(self, now: float) -> None:
        if self._last is not None:
            self.interval += 0.1 * (now - self._last - self.interval)
        self._last = now

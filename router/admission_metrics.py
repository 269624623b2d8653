"""What admission tells Prometheus: who waits, for how long and why, and who is refused."""

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmesh.harmless import LogsOnce, harmless
from kvmesh.tallies import Distribution, Tally
from router.fair_queue import FairQueue, PriorityClass, Waiter
from router.refused_error import RefusedError
from router.registry import Registry
from router.tenant_directory import TenantDirectory
from router.watermark import Wait, Watermark

if TYPE_CHECKING:
    from router.shared_limits import SharedLimits

_SECONDS = (1e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_WORDS = {each: each.name.lower() for each in PriorityClass}
_PLACES = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class AdmissionMetrics(LogsOnce):
    """One set per router. Labels are bounded: tenants are none of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        super().__init__()
        self._registry = registry
        self._refused = Tally(
            registry,
            "kvmesh_router_refused",
            "Requests that did not get in, by what was in the way",
            "reason",
        )
        self._seconds = Distribution(
            registry,
            "kvmesh_router_admission_seconds",
            "Arrival to start, or to leaving the queue",
            _SECONDS,
            "priority",
            "outcome",
        )
        self._position = Distribution(
            registry,
            "kvmesh_router_queue_position",
            "Requests that were before a new one in the queue",
            _PLACES,
            "priority",
        )

    @harmless
    def refused(self, error: RefusedError) -> None:
        self._refused.add(1, error.reason)

    @harmless
    def queued(self, waiter: Waiter, ahead: int) -> None:
        self._position.add(ahead, _WORDS[waiter.priority])

    @harmless
    def started(self, waiter: Waiter, seconds: float) -> None:
        self._seconds.add(seconds, _WORDS[waiter.priority], "started")

    @harmless
    def left(self, waiter: Waiter, seconds: float) -> None:
        self._seconds.add(seconds, _WORDS[waiter.priority], "refused")

    def watch(
        self,
        queue: FairQueue,
        watermark: Watermark,
        nodes: Registry,
        tenants: TenantDirectory,
        shared: "SharedLimits | None",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Adds gauges that are read when Prometheus asks. `clock` is the queue's."""
        self._registry.register(_QueueGauges(queue, clock))
        self._registry.register(_MemoryGauges(watermark, nodes))
        self._registry.register(_LimitGauges(tenants, shared))


class _QueueGauges(Collector):
    def __init__(self, queue: FairQueue, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        depth = GaugeMetricFamily(
            "kvmesh_router_queue_depth",
            "Requests that wait, by what they wait for",
            labels=["priority", "reason"],
        )
        age = GaugeMetricFamily(
            "kvmesh_router_queue_oldest_seconds",
            "Age of the oldest request that waits",
            labels=["priority"],
        )
        now, waiting = self._clock(), list(self._queue)
        counts = Counts((waiter.priority, waiter.reason) for waiter in waiting)
        for priority in PriorityClass:
            for reason in Wait:
                depth.add_metric([_WORDS[priority], reason.value], counts[priority, reason])
            arrivals = (waiter.arrived for waiter in waiting if waiter.priority is priority)
            age.add_metric([_WORDS[priority]], max(0.0, now - min(arrivals, default=now)))
        return [depth, age]


class _MemoryGauges(Collector):
    def __init__(self, watermark: Watermark, nodes: Registry) -> None:
        self._watermark = watermark
        self._nodes = nodes

    def collect(self) -> Iterable[Metric]:
        committed = GaugeMetricFamily(
            "kvmesh_router_committed_blocks",
            "Blocks that are given away, newest dispatches included",
            labels=["node"],
        )
        closed = GaugeMetricFamily(
            "kvmesh_router_above_watermark",
            "1 from above the high mark until below the low one",
            labels=["node"],
        )
        marks = GaugeMetricFamily(
            "kvmesh_router_watermark",
            "Share of a node's blocks above which it gets no request, and at which it gets some",
            labels=["mark"],
        )
        marks.add_metric(["high"], self._watermark.marks.high)
        marks.add_metric(["low"], self._watermark.marks.low)
        for node in self._nodes.nodes:
            committed.add_metric([node.name], self._watermark.committed(node))
            closed.add_metric([node.name], self._watermark.is_closed(node))
        return [committed, closed, marks]


class _LimitGauges(Collector):
    def __init__(self, tenants: TenantDirectory, shared: "SharedLimits | None") -> None:
        self._tenants = tenants
        self._shared = shared

    def collect(self) -> Iterable[Metric]:
        yield GaugeMetricFamily(
            "kvmesh_router_tenants", "Tenants with a key", value=len(self._tenants)
        )
        yield CounterMetricFamily(
            "kvmesh_router_tenant_reload_failures",
            "Looks at the tenants' file or at Redis that failed: the last ones stay",
            value=self._tenants.failures,
        )
        if self._shared is not None:
            yield GaugeMetricFamily(
                "kvmesh_router_limits_shared",
                "1 while limits hold over all routers, 0 while Redis is away and each has its own",
                value=self._shared.shared,
            )
            yield CounterMetricFamily(
                "kvmesh_router_limits_shared_failures",
                "Calls for the shared limits that Redis did not answer",
                value=self._shared.failures,
            )

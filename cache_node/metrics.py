"""The node's Prometheus metrics: read from its state when scraped, so that a step pays nothing."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache_node.step_output import Load

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)

GAUGES: dict[str, tuple[str, Callable[[Load], float]]] = {
    "kvmesh_num_requests_running": ("Requests in the batch", lambda load: load.running),
    "kvmesh_num_requests_waiting": ("Requests that wait for blocks", lambda load: load.waiting),
    "kvmesh_kv_blocks_committed": (
        "Blocks that requests hold, are expected to grow by, or wait for",
        lambda load: load.committed_blocks,
    ),
    "kvmesh_queued_prefill_tokens": (
        "Prompt tokens not computed yet",
        lambda load: load.queued_prefill_tokens,
    ),
}
COUNTERS: dict[str, tuple[str, Callable[[Load], float]]] = {
    "kvmesh_engine_steps": ("Steps", lambda load: load.steps),
    "kvmesh_steps_without_progress": (
        "Steps that computed nothing although requests waited",
        lambda load: load.counters.steps_without_progress,
    ),
    "kvmesh_preemptions_for_priority": (
        "Samples that gave way to a more important request",
        lambda load: load.counters.preempted_for_priority,
    ),
    "kvmesh_loaded_tokens": (
        "Prompt tokens loaded from the CPU pool",
        lambda load: load.counters.loaded_tokens,
    ),
    "kvmesh_generation_tokens": (
        "Tokens generated, of all samples",
        lambda load: load.counters.output_tokens,
    ),
    "kvmesh_failed_loads": (
        "Loads from the CPU pool that failed or came too late",
        lambda load: load.counters.failed_loads,
    ),
    "kvmesh_overtakes": (
        "Admissions past a request that did not fit",
        lambda load: load.counters.overtakes,
    ),
    "kvmesh_prefix_waits": (
        "Requests that waited for another to compute their prefix",
        lambda load: load.counters.prefix_waits,
    ),
    "kvmesh_prefix_cache_queries": (
        "Prompt tokens looked up in the prefix cache",
        lambda load: load.counters.queried_tokens,
    ),
    "kvmesh_prefix_cache_hits": (
        "Prompt tokens found there",
        lambda load: load.counters.hit_tokens,
    ),
}


class LoadCollector(Collector):
    """A collector for prometheus-client over the newest load of the node."""

    def __init__(self, load: Callable[[], Load], block_bytes: int) -> None:
        self._load = load
        self._block_bytes = block_bytes

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        counters = load.counters
        yield _family(
            GaugeMetricFamily("kvmesh_kv_blocks", "Blocks of the KV pool", labels=["state"]),
            held=load.held_blocks,
            cached=load.evictable_blocks,
            free=load.free_blocks,
        )
        yield _family(
            GaugeMetricFamily("kvmesh_cpu_blocks", "Blocks of the CPU pool", labels=["state"]),
            held=load.cpu_held_blocks,
            cached=load.cpu_cached_blocks,
            free=load.cpu_free_blocks,
        )
        yield _family(
            CounterMetricFamily(
                "kvmesh_num_preemptions", "Samples that lost their blocks", labels=["kind"]
            ),
            swap=counters.preempted_by_swap,
            recompute=counters.preempted_by_recompute,
        )
        yield _family(
            CounterMetricFamily(
                "kvmesh_cached_tokens", "Prompt tokens that a cache had, by tier", labels=["tier"]
            ),
            gpu=counters.hit_tokens,
            cpu=counters.loaded_tokens,
        )
        yield _family(
            CounterMetricFamily(
                "kvmesh_swap_bytes",
                "Copied out to the CPU pool, and in from it",
                labels=["direction"],
            ),
            **{
                "out": load.offloaded_blocks * self._block_bytes,
                "in": load.loaded_blocks * self._block_bytes,
            },
        )
        yield _family(
            CounterMetricFamily("kvmesh_samples_ended", "Samples that ended", labels=["reason"]),
            stop=counters.finished_stop,
            length=counters.finished_length,
            abort=counters.finished_abort,
        )
        yield GaugeMetricFamily(
            "kvmesh_kv_cache_usage_perc",
            "Share of the pool's blocks that requests hold, in [0, 1]",
            value=usage(load),
        )
        for name, (text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=read(load))
        for name, (text, read) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=read(load))


def _family(family: _Family, **values: float) -> _Family:
    """Fills a family of one label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family


def usage(load: Load) -> float:
    """Share of the pool's blocks that requests hold."""
    return load.held_blocks / (load.held_blocks + load.evictable_blocks + load.free_blocks)

"""The node's Prometheus metrics: read from its state when scraped, so that a step pays nothing."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cache_node.step_output import Load

GAUGES: dict[str, tuple[str, Callable[[Load], float]]] = {
    "kvmesh_num_requests_running": ("Requests in the batch", lambda load: load.running),
    "kvmesh_num_requests_waiting": ("Requests that wait for blocks", lambda load: load.waiting),
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
    "kvmesh_num_preemptions": (
        "Requests that lost their blocks",
        lambda load: load.counters.preemptions,
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


class LoadCollector:
    """A collector for prometheus-client over the newest load of the node."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        blocks = GaugeMetricFamily("kvmesh_kv_blocks", "Blocks of the pool", labels=["state"])
        blocks.add_metric(["held"], load.held_blocks)
        blocks.add_metric(["cached"], load.evictable_blocks)
        blocks.add_metric(["free"], load.free_blocks)
        yield blocks
        total = load.held_blocks + load.evictable_blocks + load.free_blocks
        yield GaugeMetricFamily(
            "kvmesh_kv_cache_usage_perc",
            "Share of the pool's blocks that requests hold, in [0, 1]",
            value=load.held_blocks / total,
        )
        for name, (text, read) in GAUGES.items():
            yield GaugeMetricFamily(name, text, value=read(load))
        for name, (text, read) in COUNTERS.items():
            yield CounterMetricFamily(name, text, value=read(load))


def serve_metrics(port: int, host: str, load: Callable[[], Load]) -> Callable[[], None]:
    """Serves /metrics on a thread of its own; returns what stops it."""
    registry = CollectorRegistry()
    registry.register(LoadCollector(load))
    server, thread = start_http_server(port, host, registry=registry)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop

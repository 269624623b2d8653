"""The node's Prometheus metrics: read from its state when scraped, so that a step pays nothing."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cache_node.step_output import Load
from kvmesh.certificates import CertificateFiles

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


class LoadCollector:
    """A collector for prometheus-client over the newest load of the node."""

    def __init__(self, load: Callable[[], Load]) -> None:
        self._load = load

    def collect(self) -> Iterator[Metric]:
        load = self._load()
        counters = load.counters
        total = load.held_blocks + load.evictable_blocks + load.free_blocks
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
            CounterMetricFamily("kvmesh_samples_ended", "Samples that ended", labels=["reason"]),
            stop=counters.finished_stop,
            length=counters.finished_length,
            abort=counters.finished_abort,
        )
        yield GaugeMetricFamily(
            "kvmesh_kv_cache_usage_perc",
            "Share of the pool's blocks that requests hold, in [0, 1]",
            value=load.held_blocks / total,
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


def serve_metrics(
    port: int, host: str, load: Callable[[], Load], tls: CertificateFiles
) -> Callable[[], None]:
    """Serves /metrics on a thread of its own, over TLS with a certificate. Returns its end."""
    registry = CollectorRegistry()
    registry.register(LoadCollector(load))
    server, thread = start_http_server(
        port,
        host,
        registry=registry,
        certfile=_text(tls.cert),
        keyfile=_text(tls.key),
        client_cafile=_text(tls.ca),
        client_auth_required=tls.ca is not None,
    )

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)

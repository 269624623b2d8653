"""The node's metrics under vLLM's names, for dashboards that are made for vLLM."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from cache_node.metrics import usage
from cache_node.node_facts import NodeFacts
from cache_node.step_output import Load
from cache_node.timings import Timings
from kvmesh.tallies import Distribution

LABELS = ("model_name", "engine")
ENGINE = "0"  # vLLM's number of an engine in a process, where we have one


class VllmMetrics(Collector):
    """Those of vLLM 0.32 that mean the same here. Where vLLM counts requests, these are samples."""

    def __init__(self, load: Callable[[], Load], timings: Timings, facts: NodeFacts) -> None:
        self._load = load
        self._timings = timings
        self._facts = facts
        self._values = [facts.labels["model"], ENGINE]

    def collect(self) -> Iterable[Metric]:
        load, timings = self._load(), self._timings
        yield self._gauge("num_requests_running", "Requests in the batch", load.running)
        yield self._gauge("num_requests_waiting", "Requests that wait", load.waiting)
        yield self._gauge("kv_cache_usage_perc", "Used share of the KV pool, 1 is all", usage(load))
        yield from self._counters(load)
        yield self._histogram(
            "time_to_first_token_seconds", "Arrival to first token", timings.first_token
        )
        yield self._histogram(
            "inter_token_latency_seconds", "One token to the next", timings.next_token
        )
        yield self._histogram("e2e_request_latency_seconds", "Arrival to end", timings.request)
        yield self._histogram("request_queue_time_seconds", "Time in the queue", timings.queue)
        yield self._histogram("request_prefill_time_seconds", "Time of prefill", timings.prefill)
        yield self._histogram("request_decode_time_seconds", "Time of decode", timings.decode)
        yield self._histogram("request_prompt_tokens", "Prompt's tokens", timings.request_prompt)
        yield self._histogram(
            "request_generation_tokens", "Output's tokens", timings.request_output
        )
        yield self._histogram(
            "request_max_num_generation_tokens", "Longest output", timings.longest_output
        )
        yield self._histogram("iteration_tokens_total", "Tokens in a step", timings.step_tokens)
        yield self._config(load)

    def _counters(self, load: Load) -> Iterable[Metric]:
        counters = load.counters
        for name, text, value in (
            ("num_preemptions", "Preemptions", counters.preemptions),
            ("prefix_cache_queries", "Tokens looked up", counters.queried_tokens),
            ("prefix_cache_hits", "Tokens found", counters.hit_tokens),
            ("prompt_tokens", "Prompt tokens", self._timings.prompt_tokens.value()),
            ("generation_tokens", "Generated tokens", counters.output_tokens),
        ):
            family = CounterMetricFamily(f"vllm:{name}", text, labels=LABELS)
            family.add_metric(self._values, value)
            yield family
        ended = CounterMetricFamily(
            "vllm:request_success", "Samples that ended", labels=(*LABELS, "finished_reason")
        )
        for reason, value in (
            ("stop", counters.finished_stop),
            ("length", counters.finished_length),
            ("abort", counters.finished_abort),
        ):
            ended.add_metric([*self._values, reason], value)
        yield ended

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"vllm:{name}", text, labels=LABELS)
        family.add_metric(self._values, value)
        return family

    def _histogram(self, name: str, text: str, histogram: Distribution) -> Metric:
        family = HistogramMetricFamily(f"vllm:{name}", text, labels=LABELS)
        for _, buckets, total in histogram.read():
            family.add_metric(self._values, buckets, total)
        return family

    def _config(self, load: Load) -> Metric:
        facts = self._facts
        labels: Mapping[str, str] = {
            "block_size": facts.labels["block_size"],
            "cache_dtype": facts.labels["kv_cache_dtype"],
            "enable_prefix_caching": str(facts.labels["prefix_caching"] == "on"),
            "num_gpu_blocks": str(load.held_blocks + load.evictable_blocks + load.free_blocks),
            "num_cpu_blocks": str(
                load.cpu_held_blocks + load.cpu_cached_blocks + load.cpu_free_blocks
            ),
            "engine": ENGINE,
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "The KV cache", labels=tuple(labels))
        family.add_metric(list(labels.values()), 1)
        return family

"""What a node tells Prometheus: a live one scraped as Prometheus does, and times by a set clock."""

import threading
from dataclasses import replace
from itertools import count

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from cache_node.engine import Engine
from cache_node.gpu_gauges import GpuGauges, open_gpu
from cache_node.metrics import LoadCollector
from cache_node.node import Node
from cache_node.preemption import PreemptionMode
from tests.cache_node.conftest import CONFIG
from tests.cache_node.live_node import LiveNode, until
from tests.cache_node.mock_node import MockNode, tokens
from tests.cases.test_engine import NoText


class Scrape:
    """Samples by name; labels narrow a name down to one."""

    def __init__(self, text: str) -> None:
        families = text_string_to_metric_families(text)
        self.samples = [sample for family in families for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        [found] = [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]
        return found.value

    def labels(self, name: str) -> dict[str, str]:
        [found] = [sample for sample in self.samples if sample.name == name]
        return found.labels

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def collected(*collectors) -> Scrape:
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    scrape = Scrape("")
    scrape.samples = [sample for metric in registry.collect() for sample in metric.samples]
    return scrape


@pytest.fixture
async def scraped(executor, smollm2):
    """A live node, and what its /metrics say now. Its first request is over."""
    import grpc

    node = Node(replace(CONFIG, metrics_port=0, vllm_metrics=True), executor, smollm2)
    async with node.serve() as port, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        live = LiveNode(node, port, channel)

        async def scrape() -> Scrape:
            await until(lambda: node.state.load.running == 0)
            async with httpx.AsyncClient() as http:
                answer = await http.get(f"http://127.0.0.1:{node.info.metrics_port}/metrics")
            return Scrape(answer.text)

        await live.generate(list(range(5, 69)), max_tokens=8, ignore_eos=True)
        yield live, scrape
        await live.settle()


async def test_requests_and_steps_are_timed_and_tokens_counted(scraped):
    live, scrape = scraped
    again = await live.generate(list(range(5, 69)), max_tokens=5, ignore_eos=True)
    told = await scrape()
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert told.value(f"kvmesh_{name}_seconds_count") == 2
        assert told.value(f"kvmesh_{name}_seconds_sum") < 60
    assert told.value("kvmesh_request_prefill_time_seconds_sum") > 0
    assert told.value("kvmesh_inter_token_latency_seconds_count") == 7 + 4
    assert told.value("kvmesh_prompt_tokens_total") == 2 * 64
    assert told.value("kvmesh_generation_tokens_total") == 8 + 5
    assert told.value("kvmesh_cached_tokens_total", tier="gpu") == again.cached_tokens >= 32
    assert told.value("kvmesh_cached_tokens_total", tier="cpu") == 0
    assert told.value("kvmesh_request_tokens_sum") == 2 * 64 + 8 + 5
    assert told.value("kvmesh_request_prompt_tokens_sum") == 2 * 64
    assert told.value("kvmesh_request_generation_tokens_sum") == 8 + 5
    steps = told.value("kvmesh_engine_steps_total")
    assert told.value("kvmesh_engine_step_seconds_count") == steps
    assert told.value("kvmesh_iteration_tokens_count") == steps
    computed = 2 * 64 - again.cached_tokens + 7 + 4
    assert told.value("kvmesh_iteration_tokens_sum") == computed
    bounds = [s.value for s in told.samples if s.name == "kvmesh_engine_step_seconds_bucket"]
    assert bounds == sorted(bounds)
    assert bounds[-1] == steps


async def test_a_node_says_what_it_is_and_what_memory_it_takes(scraped):
    live, scrape = scraped
    told = await scrape()
    labels = told.labels("kvmesh_node_info")
    assert labels["model"] == live.node.info.model
    assert labels["kv_cache_dtype"] == labels["dtype"] == "float32"
    assert labels["max_model_len"] == "1024"
    assert labels["attention"] in ("c++", "torch")
    assert labels["prefix_caching"] == "on"
    pool = told.value("kvmesh_kv_pool_bytes")
    assert pool == live.node.info.kv_bytes_per_token * 16 * (live.node.info.num_blocks + 1)
    # 134.5 million parameters of four bytes, norms apart.
    assert told.value("kvmesh_model_weights_bytes") == pytest.approx(134.5e6 * 4, rel=0.01)
    limit = told.value("kvmesh_memory_limit_bytes")
    assert pool < told.value("process_resident_memory_bytes") < limit
    assert told.value("process_cpu_seconds_total") > 0
    assert not any("gpu" in name for name in told.names if name.startswith("kvmesh_gpu"))


async def test_vllms_names_tell_the_same(scraped):
    _, scrape = scraped
    told = await scrape()
    same = {
        "num_requests_running": "num_requests_running",
        "num_requests_waiting": "num_requests_waiting",
        "kv_cache_usage_perc": "kv_cache_usage_perc",
        "prefix_cache_queries_total": "prefix_cache_queries_total",
        "prefix_cache_hits_total": "prefix_cache_hits_total",
        "prompt_tokens_total": "prompt_tokens_total",
        "generation_tokens_total": "generation_tokens_total",
        "time_to_first_token_seconds_count": "time_to_first_token_seconds_count",
        "inter_token_latency_seconds_sum": "inter_token_latency_seconds_sum",
        "e2e_request_latency_seconds_sum": "e2e_request_latency_seconds_sum",
        "request_queue_time_seconds_count": "request_queue_time_seconds_count",
        "request_prefill_time_seconds_count": "request_prefill_time_seconds_count",
        "iteration_tokens_total_sum": "iteration_tokens_sum",
    }
    for theirs, ours in same.items():
        assert told.value(f"vllm:{theirs}") == told.value(f"kvmesh_{ours}")
        assert told.labels(f"vllm:{theirs}") == {
            "model_name": "smollm2-135m-instruct",
            "engine": "0",
        }
    assert told.value("vllm:num_preemptions_total") == 0
    assert told.value("vllm:request_success_total", finished_reason="length") == 1
    assert told.labels("vllm:cache_config_info")["block_size"] == "16"


class Timed:
    """An engine over a mock node. Its clock goes on by a second whenever it is asked: each step
    takes one.
    """

    def __init__(self, node: MockNode) -> None:
        self.node = node
        self.ended = threading.Event()
        clock = count()
        self.engine = Engine(
            node.scheduler, node.executor, lambda: float(next(clock)), self._deliver, lambda: None
        )

    def complete(self, *prompts, **options) -> Scrape:
        """Runs them all to their end."""
        self._open = len(prompts)
        for number, prompt in enumerate(prompts):
            request = self.node.request(prompt, **options)
            self.engine.submit(request, lambda _: NoText(), "router", number)
        self.engine.start()
        assert self.ended.wait(10)
        self.engine.stop()
        return collected(self.engine.timings, LoadCollector(self.engine.load, 1000))

    def _deliver(self, output) -> None:
        self._open -= len(output.ended)
        if self._open == 0:
            self.ended.set()


def test_times_are_those_of_the_clock():
    timed = Timed(MockNode(max_num_batched_tokens=16))
    told = timed.complete(tokens(40), max_tokens=4)
    # Steps begin at 0, 2, 4, 6, 8, 10; the prompt takes three of them.
    assert told.value("kvmesh_engine_step_seconds_sum") == 6
    assert told.value("kvmesh_request_queue_time_seconds_sum") == pytest.approx(0, abs=0.01)
    assert told.value("kvmesh_time_to_first_token_seconds_sum") == pytest.approx(5, abs=0.01)
    assert told.value("kvmesh_request_prefill_time_seconds_sum") == 5
    assert told.value("kvmesh_inter_token_latency_seconds_sum") == 3 * 2
    assert told.value("kvmesh_inter_token_latency_seconds_count") == 3
    assert told.value("kvmesh_e2e_request_latency_seconds_sum") == pytest.approx(11, abs=0.01)
    assert told.value("kvmesh_request_decode_time_seconds_sum") == 6
    assert told.value("kvmesh_iteration_tokens_sum") == 40 + 3


def test_samples_of_one_prompt_have_one_first_token_and_gaps_of_their_own():
    timed = Timed(MockNode())
    told = timed.complete(tokens(8), max_tokens=4, n=3, temperature=1.0)
    assert told.value("kvmesh_time_to_first_token_seconds_count") == 1
    assert told.value("kvmesh_prompt_tokens_total") == 8
    assert told.value("kvmesh_inter_token_latency_seconds_count") == 3 * 3
    assert told.value("kvmesh_request_tokens_count") == 3
    assert told.value("kvmesh_request_generation_tokens_sum") == 3 * 4
    assert told.value("kvmesh_request_max_num_generation_tokens_sum") == 4


def test_a_preempted_request_has_one_first_token_and_its_swap_is_counted_in_bytes():
    node = MockNode(num_blocks=14, num_cpu_blocks=40, preemption=PreemptionMode.SWAP)
    told = Timed(node).complete(*(tokens(9, seed=seed) for seed in range(4)), max_tokens=24)
    assert told.value("kvmesh_num_preemptions_total", kind="swap") > 0
    assert told.value("kvmesh_time_to_first_token_seconds_count") == 4
    assert told.value("kvmesh_inter_token_latency_seconds_count") == 4 * 23
    out = told.value("kvmesh_swap_bytes_total", direction="out")
    assert out == 1000 * node.memory.tier.offloaded_blocks > 0
    back = told.value("kvmesh_swap_bytes_total", direction="in")
    assert back == 1000 * node.memory.loads.loaded_blocks > 0


def test_f5_a_histogram_that_breaks_breaks_no_step(capsys):
    timed = Timed(MockNode())
    timed.engine.timings.step.add = None
    timed.engine.timings.request.add = None
    told = timed.complete(tokens(8), max_tokens=4)
    assert told.value("kvmesh_samples_ended_total", reason="length") == 1
    assert capsys.readouterr().out.count("metrics_broken") == 1


class FakeNvml:
    """What is called of pynvml, with one card; `broken`: the driver does not answer."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        self.broken = False

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid != "GPU-7":
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, _handle: str):  # noqa: N802
        if self.broken:
            raise self.NVMLError("Driver Not Loaded")
        return type("Memory", (), {"used": 6 << 30, "total": 80 << 30})

    def unsupported(self, _handle: str):
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetUtilizationRates(self, _handle: str):  # noqa: N802
        return type("Rates", (), {"gpu": 37, "memory": 12})


def test_a_gpu_tells_memory_and_use_and_is_absent_while_nvml_does_not_answer():
    nvml = FakeNvml()
    gauges = open_gpu(nvml, "7")
    assert isinstance(gauges, GpuGauges)
    told = collected(gauges)
    assert told.value("kvmesh_gpu_memory_used_bytes") == 6 << 30
    assert told.value("kvmesh_gpu_memory_total_bytes") == 80 << 30
    assert told.value("kvmesh_gpu_utilization") == 0.37
    nvml.nvmlDeviceGetUtilizationRates = nvml.unsupported
    assert collected(gauges).names == {
        f"kvmesh_gpu_memory_{part}_bytes" for part in ("used", "total")
    }
    nvml.broken = True
    assert collected(gauges).names == set()
    assert open_gpu(nvml, "another") is None

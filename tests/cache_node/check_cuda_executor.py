"""The executor of a GPU node in Triton's interpreter, beside the CPU's: see test_cuda_executor.py.

The streams are torch's stand-ins for a CPU, and a decode step that would be a graph's replay is
run; its padded inputs, the plans of steps and all kernels are those of a GPU node. In float32: the
interpreter is wrong with others.
"""

import threading
from dataclasses import replace

import pytest
import torch

from cache_node.config import NodeConfig
from cache_node.decode_graphs import DecodeGraphs
from cache_node.device_streams import Streams
from cache_node.engine import Engine
from cache_node.executor_cpu import CpuExecutor
from cache_node.executor_cuda import CudaExecutor
from cache_node.kv_scales import KvScales
from cache_node.make_cuda_executor import make_cuda_executor
from cache_node.pinned_swap import PinnedSwapSpace
from cache_node.preemption import PreemptionMode
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import BlockCopy, Row, StepPlan
from tests.cache_node.cuda_beside_cpu import (
    BASE,
    BLOCK,
    BLOCKS,
    CPU_BLOCKS,
    GREEDY,
    LONG,
    PROMPTS,
    ROWS,
    SAMPLED,
    beside,
    directory,
    outputs,
    split_keys,
)
from tests.cache_node.mock_node import MockNode
from tests.model_driver import Driver, make_executor

__all__ = ["directory", "split_keys"]  # fixtures


@pytest.fixture(scope="module")
def cpu(directory) -> CpuExecutor:
    made = make_executor(directory, block_size=BLOCK, num_blocks=BLOCKS + 1)
    return CpuExecutor(made._model, made.pool, CPU_BLOCKS + 1)


@pytest.fixture
def cuda(cpu) -> CudaExecutor:
    return beside(cpu)


def test_requests_that_share_a_prefix_in_chunks_get_the_tokens_of_the_cpu(cpu, cuda):
    settings = {"num_blocks": BLOCKS, "max_num_batched_tokens": 24}
    expected, _ = outputs(cpu, GREEDY, **settings)
    found, node = outputs(cuda, GREEDY, **settings)
    assert found == expected
    assert node.counters.hit_tokens > 0
    again, node = outputs(cuda, GREEDY[:1] * 2, **settings)
    assert again["r0", 0] == again["r1", 0] == expected["r0", 0]
    assert node.counters.hit_tokens >= 32


def test_samples_that_copy_on_write_draw_the_tokens_of_the_cpu(cpu, cuda):
    settings = {"num_blocks": BLOCKS, "max_num_batched_tokens": 64}
    expected, _ = outputs(cpu, SAMPLED, **settings)
    plans = []
    run = cuda.run
    cuda.run = lambda plan: plans.append(plan) or run(plan)
    found, _ = outputs(cuda, SAMPLED, **settings)
    assert found == expected
    assert any(plan.copies for plan in plans)
    assert found["r0", 0] != found["r0", 1]


def test_preempted_requests_come_back_from_the_cpu_pool_with_the_tokens_of_the_cpu(cpu, cuda):
    settings = {"num_blocks": 20, "max_num_batched_tokens": 64, "preemption": PreemptionMode.SWAP}
    expected, _ = outputs(cpu, LONG, num_blocks=BLOCKS, max_num_batched_tokens=64)
    found, node = outputs(cuda, LONG, **settings)
    assert found == expected
    assert node.counters.preempted_by_swap > 0
    assert node.memory.loads.loaded_blocks > 0


def test_graphs_or_not_the_tokens_are_the_same(cpu, cuda):
    plain = beside(cpu, graphs=[])
    found = [Driver(each).generate(PROMPTS, 8, 16) for each in (cuda, plain)]
    assert found[0] == found[1]


def test_greedy_rows_beside_others_and_log_probabilities(cpu, cuda):
    def spec(**params):
        return SampleSpec(SamplingParams(**{"temperature": 0.0, **params}), 16)

    specs = [
        [spec()],
        [spec(logprobs=2), spec()],
        [spec(temperature=0.9, seed=3)],
        [spec(logit_bias={5: 100.0})],
        [],
        [spec(), spec()],
    ]
    rows = [
        Row(BASE[:16], 0, [2 * i + 1, 2 * i + 2], each, targets=BASE[1:16] if i == 2 else ())
        for i, each in enumerate(specs)
    ]
    expected, found = (executor.run(StepPlan(rows)) for executor in (cpu, cuda))
    for ours, theirs in zip(found, expected, strict=True):
        assert [choice.token for choice in ours.choices] == [c.token for c in theirs.choices]
        assert len(ours.prompt_logprobs) == len(theirs.prompt_logprobs)
        scores = [*ours.prompt_logprobs, *(c.logprobs for c in ours.choices if c.logprobs)]
        others = [*theirs.prompt_logprobs, *(c.logprobs for c in theirs.choices if c.logprobs)]
        assert [s.logprob for s in scores] == pytest.approx([s.logprob for s in others], abs=1e-4)
    assert found[3].choices[0].token == 5


def test_the_engine_serves_what_the_cpu_serves(cpu, cuda):
    """On its own thread, which hears of loads from the loader's."""

    class NoText:
        def push(self, token):
            return "", None

        def flush(self):
            return ""

    def serve(executor):
        node = MockNode(
            24, BLOCK, CPU_BLOCKS, ROWS, executor=executor, preemption=PreemptionMode.SWAP
        )
        ended, all_ended = [], threading.Event()

        def deliver(output):
            ended.extend(output.ended)
            if len(ended) == len(LONG):
                all_ended.set()

        engine = Engine(node.scheduler, executor, lambda: 0.0, deliver, all_ended.set)
        engine.start()
        requests = [node.request(p, n, ignore_eos=True, **options) for p, n, options in LONG]
        for request in requests:
            engine.submit(request, lambda _: NoText(), "router", 1)
        assert all_ended.wait(60)
        violations, load = engine.check_integrity().result(10)
        engine.stop()
        assert violations == []
        assert load.held_blocks == 0
        assert [each.error for each in ended] == [None] * len(LONG)
        return [request.leader.output for request in requests]

    assert serve(cuda) == serve(cpu)


def test_offloads_of_more_than_the_staging_buffer_come_back_whole(cuda, generator):
    raw = cuda.pool.raw
    raw.copy_(torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator))
    before = raw.clone()
    swap = PinnedSwapSpace(raw, CPU_BLOCKS + 1, cuda._streams)
    swap._staging = swap._staging[:3]
    order = (torch.randperm(CPU_BLOCKS, generator=generator) + 1).tolist()
    down = [BlockCopy(1 + i, place) for i, place in enumerate(order[:10])]
    swap.offload(down)
    swap.settle()
    raw[1:].zero_()
    done, loaded = [], threading.Event()
    up = [BlockCopy(copy.destination, copy.source) for copy in down]
    swap.load(7, up, lambda number, whole: (done.append((number, whole)), loaded.set()))
    assert loaded.wait(10)
    assert done == [(7, True)]
    assert torch.equal(raw[1:11], before[1:11])
    assert (raw[11:] == 0).all()
    assert swap.copy_speed() > 0


def test_a_load_that_fails_says_so_and_the_next_one_runs(cuda):
    done, said = [], threading.Semaphore(0)

    def report(number, whole):
        done.append((number, whole))
        said.release()

    cuda.swap.load(1, [BlockCopy(CPU_BLOCKS + 9, 1)], report)
    cuda.swap.load(2, [BlockCopy(1, 1)], report)
    assert said.acquire(timeout=10)
    assert said.acquire(timeout=10)
    assert done == [(1, False), (2, True)]


def test_a_step_takes_the_next_larger_graph_or_none(cpu):
    graphs = DecodeGraphs(cpu._model, cpu.pool, [1, 2, 4, 6], max_tokens=64)
    one = [Row([5], 9, [1, 2])]
    assert graphs.size_for(one) is None, "nothing is captured yet"
    graphs.capture()
    assert [graphs.size_for(one * n) for n in range(1, 8)] == [1, 2, 4, 4, 6, 6, None]
    assert graphs.size_for([*one, Row([5, 6], 9, [1, 2])]) is None


SMALL = NodeConfig(
    block_size=BLOCK, max_num_seqs=3, max_num_batched_tokens=16, max_model_len=64, dtype="float32"
)


@pytest.mark.parametrize("kv_dtype", ["auto", "int4"])
def test_what_is_made_for_a_configuration_is_warm_and_serves(directory, kv_dtype):
    flags = {"block_size": BLOCK, "num_blocks": 12, "kv_cache_dtype": kv_dtype}
    cpu = make_executor(directory, **flags)
    config = replace(SMALL, num_blocks=12, swap_space=10 * cpu.layout.bytes_per_block / 2**30)
    executor = make_cuda_executor(config, cpu._model, cpu.layout, KvScales(), free=0)
    assert (executor.num_blocks, executor.num_cpu_blocks) == (12, 11)
    assert executor.copy_bytes_per_second > 0
    assert Driver(executor).generate([BASE], 4, 16) == Driver(cpu).generate([BASE], 4, 16)


def test_the_pool_is_as_large_as_the_card_allows(cpu, monkeypatch):
    """With a card that is told: what of it is asked, when, and what becomes of the answers."""
    block, said = cpu.layout.bytes_per_block, []
    reserved = iter([50 * block, 53 * block])

    def told(name, answer):
        def ask(*_):
            said.append(name)
            return answer() if callable(answer) else answer

        monkeypatch.setattr(torch.cuda, name, ask)

    told("reset_peak_memory_stats", None)
    told("max_memory_allocated", 40 * block)
    told("empty_cache", None)
    told("memory_reserved", lambda: next(reserved))
    told("mem_get_info", (85 * block, 200 * block))  # 142 were free: 4 went past torch
    config = replace(SMALL, gpu_memory_utilization=0.5)
    executor = make_cuda_executor(config, cpu._model, cpu.layout, KvScales(), free=142 * block)
    assert executor.num_blocks == 100 - 40 - 3 - 4
    assert said[:2] == ["reset_peak_memory_stats", "max_memory_allocated"]


def test_pools_that_no_machine_has_are_refused(cpu):
    with pytest.raises(ValueError, match=r"kv_cache_bytes: .* give the pool less"):
        make_cuda_executor(
            replace(SMALL, num_blocks=10**12), cpu._model, cpu.layout, KvScales(), free=0
        )
    with pytest.raises(ValueError, match="swap_space"):
        PinnedSwapSpace(cpu.pool.raw, 10**15, Streams(torch.device("cpu")))

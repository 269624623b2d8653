"""A node's executor on a card, beside the CPU's, in float32 where tokens must be equal."""

import threading

import pytest
import torch

pytest.importorskip("triton", reason="gpu: triton is not installed")

from cache_node.executor_cuda import CudaExecutor
from cache_node.gpu_memory import GIB
from cache_node.preemption import PreemptionMode
from cache_node.step_plan import BlockCopy, Row
from tests.cache_node.check_cuda_executor import (
    BASE,
    BLOCK,
    BLOCKS,
    CPU_BLOCKS,
    GREEDY,
    LONG,
    PROMPTS,
    ROWS,
    SAMPLED,
    outputs,
)
from tests.model_driver import Driver, make_executor
from tests.tiny_model import add_kv_scales, save_tiny

FLAGS = {"block_size": BLOCK, "num_blocks": BLOCKS + 1, "max_num_seqs": ROWS}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Of heads as large as tensor cores need."""
    directory = save_tiny(tmp_path_factory.mktemp("tiny"), head_dim=16)
    add_kv_scales(directory, 0.02)
    return directory


@pytest.fixture(scope="module")
def cpu(directory):
    made = make_executor(directory, **FLAGS)
    return type(made)(made._model, made.pool, CPU_BLOCKS + 1)


@pytest.fixture(scope="module")
def cuda(directory, cpu, card) -> CudaExecutor:
    swap = CPU_BLOCKS * cpu.layout.bytes_per_block / GIB
    return make_executor(directory, device="cuda", swap_space=swap, max_model_len=256, **FLAGS)


def without_graphs(executor: CudaExecutor) -> CudaExecutor:
    """Over the same model and pool."""
    return CudaExecutor(executor._model, executor.pool, 1, [], max_tokens=256)


def test_it_is_on_the_card_and_warm(cuda, card):
    assert cuda.device == card
    assert cuda.num_cpu_blocks == CPU_BLOCKS + 1
    assert cuda.copy_bytes_per_second > 0
    assert cuda._graphs.size_for([Row([5], 3, [1])]) == 1


def test_requests_that_share_a_prefix_in_chunks_get_the_tokens_of_the_cpu(cpu, cuda):
    settings = {"num_blocks": BLOCKS, "max_num_batched_tokens": 24}
    expected, _ = outputs(cpu, GREEDY, **settings)
    found, node = outputs(cuda, GREEDY, **settings)
    assert found == expected
    assert node.counters.hit_tokens > 0


def test_samples_that_copy_on_write_draw_the_tokens_of_the_cpu(cpu, cuda):
    settings = {"num_blocks": BLOCKS, "max_num_batched_tokens": 64}
    expected, _ = outputs(cpu, SAMPLED, **settings)
    assert outputs(cuda, SAMPLED, **settings)[0] == expected


def test_preempted_requests_come_back_from_the_cpu_pool_with_the_tokens_of_the_cpu(cpu, cuda):
    settings = {"num_blocks": 20, "max_num_batched_tokens": 64, "preemption": PreemptionMode.SWAP}
    expected, _ = outputs(cpu, LONG, num_blocks=BLOCKS, max_num_batched_tokens=64)
    found, node = outputs(cuda, LONG, **settings)
    assert found == expected
    assert node.counters.preempted_by_swap > 0
    assert node.memory.loads.loaded_blocks > 0


def test_graphs_or_not_the_tokens_are_the_same(cuda):
    found = [Driver(each).generate(PROMPTS, 16, 16) for each in (cuda, without_graphs(cuda))]
    assert found[0] == found[1]


@pytest.mark.parametrize("kv_dtype", ["auto", "fp8", "int8", "int4"])
def test_bfloat16_is_near_the_cpu(directory, kv_dtype):
    flags = {**FLAGS, "kv_cache_dtype": kv_dtype, "max_model_len": 256}
    there, here = (
        make_executor(directory, "bfloat16", device=device, **flags) for device in ("cuda", "cpu")
    )
    row = Row(BASE, 0, range(1, 6))
    found, expected = (e.prompt_logits(row).float().cpu().log_softmax(-1) for e in (there, here))
    assert (found - expected).abs().mean() < 0.3


def test_a_swap_round_trip_brings_every_byte_back(cuda, generator):
    raw = cuda.pool.raw
    drawn = torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator)
    raw.copy_(drawn)
    cuda.swap._staging = cuda.swap._staging[:3]
    down = [BlockCopy(1 + i, CPU_BLOCKS - i) for i in range(10)]
    cuda.swap.offload(down)
    cuda.swap.settle()
    raw.zero_()
    torch.cuda.synchronize()
    done, loaded = [], threading.Event()
    up = [BlockCopy(copy.destination, copy.source) for copy in down]
    cuda.swap.load(1, up, lambda number, whole: (done.append((number, whole)), loaded.set()))
    assert loaded.wait(30)
    assert done == [(1, True)]
    assert torch.equal(raw[1:11].cpu(), drawn[1:11])
    assert (raw[11:] == 0).all()
    assert cuda.swap._space.is_pinned()


def test_the_pool_takes_what_the_share_leaves(directory, card):
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(card)
    share = 0.5 * free / total
    config = {"max_model_len": 256, "max_num_seqs": ROWS, "gpu_memory_utilization": share}
    executor = make_executor(directory, "bfloat16", device="cuda", num_blocks=None, **config)
    used = free - torch.cuda.mem_get_info(card)[0]
    assert 0.4 * free < executor.num_blocks * executor.layout.bytes_per_block < 0.5 * free
    assert used < 0.55 * free


def test_a_pool_that_no_card_has_is_refused(directory, card):
    with pytest.raises(ValueError, match=r"kv_cache_bytes: .* give the pool less"):
        make_executor(directory, device="cuda", num_blocks=None, kv_cache_bytes=10**15)

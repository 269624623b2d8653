"""Quantised caches of a GPU node in Triton's interpreter: see check_cuda_executor.py."""

import pytest
import torch

from cache_node.executor_cpu import CpuExecutor
from cache_node.preemption import PreemptionMode
from tests.cache_node.cuda_beside_cpu import (
    BLOCK,
    BLOCKS,
    CPU_BLOCKS,
    PROMPTS,
    SAMPLED,
    beside,
    directory,
    outputs,
    split_keys,
)
from tests.model_driver import Driver, make_executor

__all__ = ["directory", "split_keys"]  # fixtures


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "int4"])
def test_a_quantised_cache_gives_the_tokens_of_the_reference(directory, kv_dtype):
    """Beside plain torch in float32: the C++ kernels multiply quantised keys as bfloat16."""
    flags = {"block_size": BLOCK, "num_blocks": BLOCKS + 1, "kv_cache_dtype": kv_dtype}
    reference = make_executor(directory, **flags)
    layout, draw = reference.layout, torch.Generator().manual_seed(1)
    shape = (1, 2, layout.num_kv_heads, layout.head_dim)
    reference.pool.centres = 0.1 * torch.randn(shape, generator=draw)
    driven = [Driver(each).generate(PROMPTS, 6, 16) for each in (reference, beside(reference))]
    assert driven[0] == driven[1]


def test_an_int4_cache_comes_back_from_the_cpu_pool(directory):
    flags = {"block_size": BLOCK, "num_blocks": BLOCKS + 1, "kv_cache_dtype": "int4"}
    executor = beside(make_executor(directory, **flags))
    requests = [(prompt, 12, {"cache": False}) for prompt in PROMPTS[2:]]
    expected, _ = outputs(executor, requests, num_blocks=BLOCKS, max_num_batched_tokens=64)
    settings = {"num_blocks": 7, "max_num_batched_tokens": 64, "preemption": PreemptionMode.SWAP}
    found, node = outputs(executor, requests, **settings)
    assert found == expected
    assert node.counters.preempted_by_swap > 0


def test_open_blocks_of_int4_are_copied_with_the_keys_in_their_tails(directory):
    flags = {"block_size": BLOCK, "num_blocks": BLOCKS + 1, "kv_cache_dtype": "int4"}
    made = make_executor(directory, **flags)
    reference = CpuExecutor(made._model, made.pool, CPU_BLOCKS + 1)
    settings = {"num_blocks": BLOCKS, "max_num_batched_tokens": 64}
    expected, _ = outputs(reference, SAMPLED, **settings)
    assert outputs(beside(reference), SAMPLED, **settings)[0] == expected

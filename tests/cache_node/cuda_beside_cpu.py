"""A CPU node and one whose executor is a GPU's, in Triton's interpreter, over the same model."""

import pytest
import torch

from cache_node.decode_graphs import graph_sizes
from cache_node.executor_cpu import CpuExecutor
from cache_node.executor_cuda import CudaExecutor
from kernels.kv_pool import KvPool
from kernels.triton import decode
from tests.cache_node.mock_node import MockNode
from tests.tiny_model import add_kv_scales, save_tiny

BLOCK, BLOCKS, CPU_BLOCKS, ROWS = 8, 48, 40, 6
BASE = [3 + (7 * i * i + 5 * i) % 90 for i in range(40)]
PROMPTS = [BASE, [*BASE[:30], 5, 9], BASE[:16], [*BASE[:18], 8]]
GREEDY = [(prompt, 6, {}) for prompt in PROMPTS]
SAMPLED = [(prompt, 6, {"n": 2, "temperature": 0.8, "seed": 5}) for prompt in PROMPTS[:3]]
LONG = [(prompt, 30, {"cache": i % 2 == 0}) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = save_tiny(tmp_path_factory.mktemp("tiny"), num_hidden_layers=1, head_dim=16)
    add_kv_scales(directory, 0.02)
    return directory


@pytest.fixture(autouse=True)
def split_keys(monkeypatch):
    """Of sequences as short as these."""
    monkeypatch.setattr(decode, "FEWEST_KEYS", 16)


def beside(cpu: CpuExecutor, graphs=None) -> CudaExecutor:
    """One with the same model, and a pool of its own, in whose unused slots are NaN."""
    tails = None if cpu.pool.int4 is None else torch.full_like(cpu.pool.int4.tails, torch.nan)
    raw = torch.full_like(cpu.pool.raw, 255)
    pool = KvPool(cpu.layout, raw, cpu.pool.head_scales, tails, cpu.pool.centres)
    sizes = graph_sizes(ROWS) if graphs is None else graphs
    executor = CudaExecutor(cpu._model, pool, CPU_BLOCKS + 1, sizes, max_tokens=256)
    executor.capture()
    return executor


def outputs(executor, requests, **settings):
    """The tokens of every sample of `requests`, (prompt, max_tokens, options); the node."""
    node = MockNode(
        block_size=BLOCK,
        max_num_seqs=ROWS,
        executor=executor,
        num_cpu_blocks=CPU_BLOCKS,
        **settings,
    )
    for prompt, max_tokens, options in requests:
        node.submit(prompt, max_tokens, ignore_eos=True, **options)
        node.step()  # the next arrives when this one runs
    node.run()
    return {name: sequence.output for name, sequence in node.finished.items()}, node

"""Every feature against every other: in float32 no combination changes a token."""

from itertools import product
from pathlib import Path

import pytest

from cache_node.executor_cpu import CpuExecutor
from cache_node.preemption import PreemptionMode
from tests.cache_node.mock_node import MockNode
from tests.model_driver import make_executor
from tests.tiny_model import add_kv_scales, save_tiny

BLOCK = 4
NEW_TOKENS = 20
AMPLE, TIGHT, CPU = 160, 30, 60  # blocks
NO_CHUNKS = 4096


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    directory = save_tiny(tmp_path_factory.mktemp("tiny"))
    add_kv_scales(directory, 0.02)
    return directory


@pytest.fixture(scope="module")
def executor(directory) -> CpuExecutor:
    return with_cpu_pool(make_executor(directory, block_size=BLOCK, num_blocks=AMPLE + 1))


def with_cpu_pool(executor: CpuExecutor) -> CpuExecutor:
    return CpuExecutor(executor._model, executor.pool, CPU + 1)


def prompts() -> list[list[int]]:
    """Shared beginnings, whole blocks, one that is inside another, and strangers."""
    base = [3 + (7 * i * i + 5 * i) % 90 for i in range(40)]
    return [base, [*base[:30], 5, 9], base[:16], [*base[:18], 8], [11 + i for i in range(25)]]


def run(executor, temperature, n, *, cache, chunk, blocks, mode) -> tuple[dict, MockNode]:
    node = MockNode(
        blocks,
        BLOCK,
        CPU if mode is PreemptionMode.SWAP else 0,
        max_num_batched_tokens=chunk,
        preemption=mode,
        executor=executor,
    )
    outputs = {}
    for _ in range(2):  # the second round finds what the first has left
        leaders = [
            node.submit(
                prompt,
                NEW_TOKENS,
                n=n,
                temperature=temperature,
                seed=5,
                cache=cache,
                ignore_eos=True,
            )
            for prompt in prompts()
        ]
        node.run()
        for i, leader in enumerate(leaders):
            for sample in range(n):
                output = node.finished[leader.request.id, sample].output
                assert outputs.setdefault((i, sample), output) == output
    return outputs, node


PLAIN = {"cache": False, "chunk": NO_CHUNKS, "blocks": AMPLE, "mode": PreemptionMode.RECOMPUTE}


@pytest.fixture(scope="module")
def reference(executor):
    """Each request on a node without cache, chunks or pressure."""
    return {
        (temperature, n): run(executor, temperature, n, **PLAIN)[0]
        for temperature, n in product((0.0, 0.8), (1, 4))
    }


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
@pytest.mark.parametrize("blocks", [AMPLE, TIGHT])
@pytest.mark.parametrize("chunk", [16, 64, NO_CHUNKS])
@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_c12_no_feature_changes_a_token(
    executor, reference, temperature, n, cache, chunk, blocks, mode
):
    found, node = run(executor, temperature, n, cache=cache, chunk=chunk, blocks=blocks, mode=mode)
    assert found == reference[temperature, n]
    counters = node.counters
    assert (counters.hit_tokens > 0) is cache
    assert (counters.preemptions > 0) is (blocks == TIGHT)
    if blocks == TIGHT:
        by_swap = mode is PreemptionMode.SWAP
        assert (counters.preempted_by_swap > 0) is by_swap
        assert not by_swap or node.memory.loads.loaded_blocks > 0


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
@pytest.mark.parametrize("kv_cache_dtype", ["fp8", "int8"])
def test_no_feature_changes_a_token_of_a_quantised_cache(directory, kv_cache_dtype, mode):
    """Copies, swaps and hits move elements and scales together."""
    flags = {"block_size": BLOCK, "num_blocks": AMPLE + 1, "kv_cache_dtype": kv_cache_dtype}
    executor = with_cpu_pool(make_executor(directory, **flags))
    expected, _ = run(executor, 0.8, 4, **PLAIN)
    found, node = run(executor, 0.8, 4, cache=True, chunk=16, blocks=TIGHT, mode=mode)
    assert found == expected
    assert node.counters.hit_tokens > 0
    assert node.counters.preemptions > 0


def test_an_int4_cache_ends_every_request_under_pressure(directory):
    """Tokens may change: blocks that are copied down before they are full are quantised twice."""
    flags = {"block_size": BLOCK, "num_blocks": AMPLE + 1, "kv_cache_dtype": "int4"}
    executor = with_cpu_pool(make_executor(directory, **flags))
    plain, _ = run(executor, 0.0, 4, **PLAIN)
    node = MockNode(
        TIGHT,
        BLOCK,
        CPU,
        max_num_batched_tokens=16,
        preemption=PreemptionMode.SWAP,
        executor=executor,
    )
    for prompt in prompts():
        node.submit(prompt, NEW_TOKENS, n=4, temperature=0.8, seed=5, ignore_eos=True)
    node.run()
    assert {len(each.output) for each in node.finished.values()} == {NEW_TOKENS}
    assert len(node.finished) == len(plain) == 4 * len(prompts())
    assert node.counters.preempted_by_swap > 0
    assert node.memory.loads.loaded_blocks > 0


def test_other_seeds_and_samples_differ(reference):
    sampled = reference[0.8, 4]
    assert len({tuple(sampled[0, sample]) for sample in range(4)}) == 4

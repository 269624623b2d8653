"""A whole step on the Triton kernels, in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.torch_step import TorchStep
from kernels.triton import decode
from kernels.triton.step import TritonStep, decode_splits
from kernels.triton.step_arrays import StepArrays, StepTensors
from tests.kernels.pools import fill
from tests.kernels.triton.fixtures import LAYER, LAYERS, drawn_scales, empty_pool, make_rows

KV_HEADS, HEADS, HEAD_DIM, BLOCK_SIZE = 2, 6, 64, 16
DECODES = [(70, 71), (0, 1), (15, 16), (16, 17)]
MIXED = [(0, 37), (70, 71), (0, 1), (65, 83)]


def make_pools(kv_dtype, blocks, generator):
    """Two of the same random content."""
    scales = drawn_scales(KV_HEADS, kv_dtype, generator)
    pools = [empty_pool(blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM, kv_dtype, scales) for _ in range(2)]
    fill(pools[0], torch.randn(pools[0].elements.shape, generator=generator))
    pools[1].raw.copy_(pools[0].raw)
    return pools


def drawn_tokens(count, generator):
    """qkv, cos and sin of a step."""
    qkv = torch.randn((count, (HEADS + 2 * KV_HEADS) * HEAD_DIM), generator=generator)
    angles = torch.rand((count, 1, HEAD_DIM), generator=generator)
    return qkv, angles.cos(), angles.sin()


def run(step, tokens, norm, params):
    qkv, cos, sin = (part.clone() for part in tokens)
    return step.attend(LAYER, step.place(LAYER, qkv, cos, sin, norm, 1e-5), params)


@pytest.mark.parametrize("kv_dtype", ["float32", "fp8", "int8"])
@pytest.mark.parametrize("spans", [DECODES, MIXED], ids=["decodes", "mixed"])
@pytest.mark.parametrize("window", [None, 20])
def test_a_step_writes_and_attends_as_the_reference(kv_dtype, spans, window, generator):
    rows = make_rows(spans, BLOCK_SIZE, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    found, expected = make_pools(kv_dtype, blocks, generator)
    tokens = drawn_tokens(sum(end - start for start, end in spans), generator)
    norm = torch.rand((HEADS + KV_HEADS, HEAD_DIM), generator=generator)
    params = AttentionParams(HEAD_DIM**-0.5, window)
    arrays = StepArrays.of(rows, BLOCK_SIZE)
    ours = TritonStep.of(found, HEADS, arrays, torch.float32, [window])
    theirs = TorchStep(expected, HEADS, rows, torch.float32, [window])
    torch.testing.assert_close(run(ours, tokens, norm, params), run(theirs, tokens, norm, params))
    assert torch.equal(found.raw, expected.raw)


def test_tensors_of_a_padded_step_may_be_filled_again(generator):
    """What a CUDA graph does: the same tensors for several steps, of fewer and fewer rows."""
    rows = make_rows(DECODES, BLOCK_SIZE, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    found, expected = make_pools("float32", blocks, generator)
    params, size, width = AttentionParams(HEAD_DIM**-0.5), 8, 20
    tensors = StepTensors(
        slots=torch.zeros((2, size), dtype=torch.int64),
        tables=torch.full((size, width), 1 << 20, dtype=torch.int32),
        lengths=torch.zeros(size, dtype=torch.int32),
        starts=None,
    )
    step = TritonStep(found, HEADS, torch.float32, tensors)
    for count in (4, 2, 1):
        used = rows[:count]
        arrays = StepArrays.of(used, BLOCK_SIZE).padded(size)
        tensors.slots.copy_(torch.from_numpy(arrays.slots))
        tensors.lengths.copy_(torch.from_numpy(arrays.lengths))
        tensors.tables[:, : arrays.tables.shape[1]] = torch.from_numpy(arrays.tables)
        tokens = drawn_tokens(size, generator)
        result = run(step, tokens, None, params)
        theirs = TorchStep(expected, HEADS, used, torch.float32, [None])
        wanted = run(theirs, [part[:count] for part in tokens], None, params)
        torch.testing.assert_close(result[:count], wanted)
        assert (result[count:] == 0).all()
        assert torch.equal(found.raw[1:], expected.raw[1:]), "padding wrote to a block of somebody"


def test_a_decode_step_splits_by_what_its_layers_see(generator, monkeypatch):
    monkeypatch.setattr(decode, "FEWEST_KEYS", 16)
    pool = empty_pool(2, KV_HEADS, BLOCK_SIZE, HEAD_DIM, "float32")
    assert decode_splits(pool, HEADS, 1, 100, [None]) == 4
    assert decode_splits(pool, HEADS, 1, 100, [20, None]) == 4
    assert decode_splits(pool, HEADS, 1, 100, [20]) == 1
    assert decode_splits(pool, HEADS, 4, 100, [None]) == 1


def test_what_has_no_kernels_yet_is_refused():
    tensors = StepTensors.of(
        StepArrays.of([AttentionRow(0, 1, [1])], BLOCK_SIZE), 1, torch.device("cpu")
    )
    centred = empty_pool(2, KV_HEADS, BLOCK_SIZE, HEAD_DIM, "int8")
    centred.centres = torch.zeros((LAYERS, KV_HEADS, HEAD_DIM))
    layout = KvLayout(LAYERS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, "int4")
    tails = torch.zeros((1, LAYERS, KV_HEADS, BLOCK_SIZE, HEAD_DIM))
    for pool in (centred, KvPool.zeros(layout, 2, tails=tails)):
        with pytest.raises(ValueError, match="kv_cache_dtype"):
            TritonStep(pool, HEADS, torch.float32, tensors)

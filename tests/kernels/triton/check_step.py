"""A whole step on the Triton kernels, in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.torch_step import TorchStep
from kernels.triton import decode
from kernels.triton.step import TritonStep, decode_splits
from kernels.triton.step_arrays import StepArrays, StepTensors
from tests.kernels.triton.fixtures import (
    LAYER,
    empty_pool,
    make_pool,
    make_rows,
    open_rows,
    twins,
)

KV_HEADS, HEADS, HEAD_DIM, BLOCK_SIZE = 2, 6, 64, 16
DECODES = [(70, 71), (0, 1), (15, 16), (16, 17)]
MIXED = [(0, 37), (70, 71), (0, 1), (65, 83)]
KV_DTYPES = ["float32", "fp8 centred", "int8 centred", "int4 centred"]


def make_step(spans, kv_dtype, generator):
    """Rows, and two pools of the same random content for them."""
    rows = make_rows(spans, BLOCK_SIZE, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    if kv_dtype.startswith("int4"):
        rows = open_rows(rows, BLOCK_SIZE, generator)
    shape = (blocks, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    return rows, *twins(make_pool(*shape, kv_dtype, generator, len(rows)))


def drawn_tokens(count, generator):
    """qkv, cos and sin of a step."""
    qkv = torch.randn((count, (HEADS + 2 * KV_HEADS) * HEAD_DIM), generator=generator)
    angles = torch.rand((count, 1, HEAD_DIM), generator=generator)
    return qkv, angles.cos(), angles.sin()


def run(step, tokens, norm, params):
    qkv, cos, sin = (part.clone() for part in tokens)
    return step.attend(LAYER, step.place(LAYER, qkv, cos, sin, norm, 1e-5), params)


def tolerance_of(pool):
    """What is near to two numbers of four bits may become either."""
    return {"rtol": 0.02, "atol": 0.05} if pool.int4 else {}


def assert_same(found, expected, message=""):
    differ = (found.raw[1:] != expected.raw[1:]).float().mean()
    assert differ <= (1e-3 if found.int4 else 0.0), message
    if found.int4:
        torch.testing.assert_close(found.int4.tails, expected.int4.tails)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize(
    ("spans", "window"), [(DECODES, None), (MIXED, 20)], ids=["decodes", "mixed"]
)
def test_a_step_writes_and_attends_as_the_reference(kv_dtype, spans, window, generator):
    rows, found, expected = make_step(spans, kv_dtype, generator)
    tokens = drawn_tokens(sum(end - start for start, end in spans), generator)
    norm = torch.rand((HEADS + KV_HEADS, HEAD_DIM), generator=generator)
    params = AttentionParams(HEAD_DIM**-0.5, window)
    arrays = StepArrays.of(rows, BLOCK_SIZE)
    ours = TritonStep.of(found, HEADS, arrays, torch.float32, [window])
    theirs = TorchStep(expected, HEADS, rows, torch.float32, [window])
    results = run(ours, tokens, norm, params), run(theirs, tokens, norm, params)
    torch.testing.assert_close(*results, **tolerance_of(found))
    assert_same(found, expected)


@pytest.mark.parametrize("kv_dtype", ["float32", "int4 centred"])
def test_tensors_of_a_padded_step_may_be_filled_again(kv_dtype, generator):
    """What a CUDA graph does: the same tensors for several steps, of fewer and fewer rows."""
    rows, found, expected = make_step(DECODES, kv_dtype, generator)
    params, size, width = AttentionParams(HEAD_DIM**-0.5), 8, 20
    tensors = StepTensors(
        slots=torch.zeros((2, size), dtype=torch.int64),
        tables=torch.full((size, width), 1 << 20, dtype=torch.int32),
        lengths=torch.zeros(size, dtype=torch.int32),
        starts=None,
        tails=torch.zeros(size, dtype=torch.int64) if found.int4 else None,
    )
    step = TritonStep(found, HEADS, torch.float32, tensors)
    for count in (4, 2, 1):
        used = rows[:count]
        arrays = StepArrays.of(used, BLOCK_SIZE).padded(size)
        tensors.slots.copy_(torch.from_numpy(arrays.slots))
        tensors.lengths.copy_(torch.from_numpy(arrays.lengths))
        tensors.tables[:, : arrays.tables.shape[1]] = torch.from_numpy(arrays.tables)
        if tensors.tails is not None:
            tensors.tails.copy_(torch.from_numpy(arrays.tails))
        tokens = drawn_tokens(size, generator)
        result = run(step, tokens, None, params)
        theirs = TorchStep(expected, HEADS, used, torch.float32, [None])
        wanted = run(theirs, [part[:count] for part in tokens], None, params)
        torch.testing.assert_close(result[:count], wanted, **tolerance_of(found))
        assert (result[count:] == 0).all()
        assert_same(found, expected, "padding wrote to a block or tail of somebody")


def test_a_decode_step_splits_by_what_its_layers_see(generator, monkeypatch):
    monkeypatch.setattr(decode, "FEWEST_KEYS", 16)
    pool = empty_pool(2, KV_HEADS, BLOCK_SIZE, HEAD_DIM, "float32")
    assert decode_splits(pool, HEADS, 1, 100, [None]) == 4
    assert decode_splits(pool, HEADS, 1, 100, [20, None]) == 4
    assert decode_splits(pool, HEADS, 1, 100, [20]) == 1
    assert decode_splits(pool, HEADS, 4, 100, [None]) == 1

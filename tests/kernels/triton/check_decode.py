"""Decode attention in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.triton.decode import MOST_SPLITS, decode_attention, splits_for
from tests.kernels.triton.fixtures import (
    LAYER,
    guarded,
    make_pool,
    make_rows,
    open_rows,
    padded_tables,
    poison_unseen,
    reference,
    tails_of,
)

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
# KV dtype, query dtype, KV heads, query heads of each, head_dim, block size, splits, window, cap
CASES = [
    ("float32", torch.float32, 2, 4, 64, 16, 1, None, None),
    ("float32", torch.float32, 1, 7, 80, 8, 4, None, 30.0),
    ("float32", torch.float32, 3, 1, 96, 32, 2, 50, None),
    ("float32", torch.float32, 1, 20, 128, 128, 1, None, None),
    ("float32", torch.float32, 2, 2, 256, 16, 2, 33, 5.0),
    ("float16", torch.float16, 2, 4, 64, 16, 2, None, 30.0),
    ("float16", torch.float16, 3, 1, 80, 32, 1, 20, None),
    ("float16", torch.float16, 1, 17, 96, 8, 4, None, None),
    ("float16", torch.float16, 2, 8, 128, 64, 4, 100, 50.0),
    ("float16", torch.float16, 1, 3, 256, 48, 1, None, None),
    ("bfloat16", torch.bfloat16, 2, 4, 64, 16, 2, 50, 30.0),
    ("bfloat16", torch.bfloat16, 1, 8, 128, 16, 1, None, None),
    ("fp8", torch.float16, 2, 4, 64, 16, 4, None, None),
    ("fp8", torch.float32, 3, 1, 80, 128, 1, None, None),
    ("fp8", torch.float16, 1, 20, 96, 16, 2, 40, 30.0),
    ("fp8", torch.bfloat16, 2, 3, 128, 32, 1, 70, None),
    ("fp8", torch.float16, 1, 6, 256, 8, 2, None, 5.0),
    ("int8", torch.float16, 2, 4, 64, 8, 1, None, 30.0),
    ("int8", torch.float16, 1, 16, 80, 16, 2, 1, None),
    ("int8", torch.float32, 3, 1, 96, 64, 4, None, None),
    ("int8", torch.bfloat16, 2, 5, 128, 16, 2, None, None),
    ("int8", torch.float16, 2, 2, 256, 128, 1, 90, 50.0),
    ("int4", torch.float16, 2, 4, 64, 16, 2, None, 30.0),
    ("int4", torch.float32, 1, 3, 80, 8, 1, None, None),
    ("int4", torch.float16, 3, 1, 96, 128, 4, 150, None),
    ("int4", torch.bfloat16, 2, 2, 128, 16, 1, 20, None),
    ("int4", torch.float16, 1, 6, 256, 48, 2, None, None),
    ("float16 centred", torch.float16, 2, 4, 64, 16, 1, None, None),
    ("fp8 centred", torch.float32, 1, 3, 80, 16, 2, 40, None),
    ("int8 centred", torch.float16, 3, 2, 128, 32, 4, None, None),
    ("int4 centred", torch.float32, 2, 2, 96, 32, 4, None, 30.0),
    ("int4 centred", torch.float16, 2, 3, 64, 64, 1, 50, None),
]


def drawn_lengths(generator, block_size, tile=64):
    """One token, a tile and one more, a whole block, and one that is drawn."""
    drawn = torch.randint(1, 4 * tile, (1,), generator=generator).tolist()
    return [1, tile + 1, block_size, *drawn]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_decode_is_the_reference_and_reads_no_slot_that_is_not_seen(case, generator):
    kv_dtype, dtype, kv_heads, group, head_dim, block_size, splits, window, cap = case
    lengths = drawn_lengths(generator, block_size)
    rows = make_rows([(n - 1, n) for n in lengths], block_size, generator)
    rows = open_rows(rows, block_size, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    shape = (blocks, kv_heads, block_size, head_dim)
    pool = make_pool(*shape, kv_dtype, generator, len(rows), dtype)
    # A part of wider rows, as a projection of queries, keys and values at once leaves them.
    wide = torch.randn((len(rows), kv_heads * group + 2, head_dim), generator=generator).to(dtype)
    query = wide[:, : kv_heads * group]
    params = AttentionParams(head_dim**-0.5, window, cap)
    expected = reference(query, pool, rows, params)
    poison_unseen(pool, rows, window)
    ends, tails = torch.tensor(lengths, dtype=torch.int32), tails_of(rows, pool)
    with guarded(query.shape, dtype) as out:
        decode_attention(query, pool, LAYER, padded_tables(rows), ends, params, splits, out, tails)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("kv_dtype", ["float32", "int4 centred"])
def test_rows_that_pad_a_batch_become_zeros(kv_dtype, splits, generator):
    pool = make_pool(2, 1, 16, 64, kv_dtype, generator)
    query = torch.randn((2, 3, 64), generator=generator)
    tables = torch.tensor([[1], [0]], dtype=torch.int64)
    lengths, params = torch.tensor([5, 0], dtype=torch.int32), AttentionParams(0.125)
    tails = None if pool.int4 is None else torch.tensor([0, -1])
    with guarded(query.shape, torch.float32) as out:
        decode_attention(query, pool, LAYER, tables, lengths, params, splits, out, tails)
    assert out[0].isfinite().all()
    assert (out[1] == 0).all()


def test_scores_too_large_for_exp_are_still_a_softmax(generator):
    pool = make_pool(9, 1, 16, 64, "float32", generator)
    rows = make_rows([(127, 128)], 16, generator)
    query = 100 * torch.randn((1, 2, 64), generator=generator)
    params, lengths = AttentionParams(1.0), torch.tensor([128], dtype=torch.int32)
    found = decode_attention(query, pool, LAYER, padded_tables(rows), lengths, params, 2)
    # Two sums of products near 1000 differ by 1e-4 in float32, and so does the exponent of e.
    torch.testing.assert_close(found, reference(query, pool, rows, params), rtol=2e-3, atol=2e-3)


def test_a_value_of_fp8_that_is_no_number_stays_none(generator):
    pool = make_pool(2, 1, 16, 64, "fp8", generator)
    pool.elements.view(torch.uint8)[1, LAYER, 1, 0, 3, 5:7] = torch.tensor([127, 255]).byte()
    query, lengths = torch.randn((1, 2, 64), generator=generator), torch.tensor([9]).int()
    tables, params = torch.tensor([[1]]), AttentionParams(0.125)
    found = decode_attention(query, pool, LAYER, tables, lengths, params)
    assert found[..., 5:7].isnan().all()
    assert found[..., :5].isfinite().all()
    assert found[..., 7:].isfinite().all()


def test_no_rows_are_no_launch(generator):
    pool = make_pool(2, 1, 16, 64, "float32", generator)
    empty = torch.zeros((0, 1), dtype=torch.int32)
    found = decode_attention(
        torch.zeros((0, 2, 64)), pool, LAYER, empty, empty[:, 0], AttentionParams(0.125)
    )
    assert found.shape == (0, 2, 64)


def test_splits_fill_the_chip_and_no_split_is_short():
    assert splits_for(1, 32, 8, longest=100, multiprocessors=132) == 1
    assert splits_for(1, 32, 8, longest=100_000, multiprocessors=132) == MOST_SPLITS
    assert splits_for(8, 32, 8, longest=100_000, multiprocessors=132) == 4
    assert splits_for(8, 32, 8, longest=600, multiprocessors=132) == 2
    assert splits_for(512, 32, 8, longest=100_000, multiprocessors=132) == 1
    assert splits_for(0, 32, 8, longest=0, multiprocessors=132) == 1

"""Attention of mixed batches in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.triton.prefill import prefill_attention
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
# KV dtype, query dtype, KV heads, query heads of each, head_dim, block size, window, cap
CASES = [
    ("float32", torch.float32, 2, 4, 64, 16, None, None),
    ("float32", torch.float32, 3, 1, 80, 8, 20, None),
    ("float32", torch.float32, 1, 33, 96, 32, 30, None),
    ("float32", torch.float32, 1, 7, 128, 128, None, 30.0),
    ("float32", torch.float32, 2, 2, 256, 16, 33, 5.0),
    ("float16", torch.float16, 2, 4, 64, 64, 100, 50.0),
    ("float16", torch.float16, 1, 9, 80, 16, None, None),
    ("float16", torch.float16, 2, 1, 128, 48, None, None),
    ("bfloat16", torch.bfloat16, 1, 5, 64, 16, None, 50.0),
    ("fp8", torch.bfloat16, 2, 3, 64, 8, None, 30.0),
    ("fp8", torch.float16, 1, 16, 96, 16, 40, None),
    ("fp8", torch.float32, 2, 1, 128, 32, None, None),
    ("fp8", torch.float16, 1, 5, 256, 128, None, None),
    ("int8", torch.bfloat16, 2, 4, 64, 16, None, None),
    ("int8", torch.float32, 1, 8, 80, 32, 1, None),
    ("int8", torch.float16, 2, 2, 128, 8, 70, 30.0),
    ("int8", torch.float16, 1, 3, 256, 64, None, None),
    ("int4", torch.float16, 1, 4, 64, 16, None, 30.0),
    ("int4", torch.float32, 2, 1, 80, 32, None, None),
    ("int4", torch.bfloat16, 1, 2, 128, 48, 40, None),
    ("int4", torch.float16, 1, 2, 256, 64, None, None),
    ("int8 centred", torch.float16, 1, 3, 96, 16, None, None),
    ("fp8 centred", torch.float32, 2, 2, 64, 8, 20, None),
    ("int4 centred", torch.float16, 2, 1, 96, 128, 100, None),
]


def drawn_spans(generator):
    """A prompt from its start, decode rows, a chunk behind a prefix, one that is drawn."""
    start, count = torch.randint(1, 50, (2,), generator=generator).tolist()
    return [(0, 37), (70, 71), (0, 1), (65, 83), (start, start + count)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_a_mixed_batch_is_the_reference_and_reads_no_slot_that_is_not_seen(case, generator):
    kv_dtype, dtype, kv_heads, group, head_dim, block_size, window, cap = case
    spans = drawn_spans(generator)
    rows = make_rows(spans, block_size, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    if kv_dtype.startswith("int4"):
        rows = open_rows(rows, block_size, generator)
    shape = (blocks, kv_heads, block_size, head_dim)
    pool = make_pool(*shape, kv_dtype, generator, len(rows), dtype)
    counts = torch.tensor([0] + [row.end - row.start for row in rows])
    starts = counts.cumsum(0).to(torch.int32)
    tokens, heads = int(starts[-1]), kv_heads * group
    # A part of wider rows, as a projection of queries, keys and values at once leaves them.
    wide = torch.randn((tokens, heads + 2, head_dim), generator=generator).to(dtype)
    query = wide[:, :heads]
    params = AttentionParams(head_dim**-0.5, window, cap)
    expected = reference(query, pool, rows, params)
    poison_unseen(pool, rows, window)
    tables, tails = padded_tables(rows), tails_of(rows, pool)
    lengths = torch.tensor([row.end for row in rows], dtype=torch.int32)
    with guarded(query.shape, dtype) as out:
        prefill_attention(query, pool, LAYER, starts, tables, lengths, params, out, tails)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), expected, rtol=tolerance, atol=tolerance)


def test_padding_of_rows_and_tokens_is_left_alone(generator):
    pool = make_pool(3, 1, 16, 64, "float32", generator)
    query = torch.randn((9, 3, 64), generator=generator)
    rows = make_rows([(0, 5)], 16, generator)
    params = AttentionParams(0.125)
    tables = torch.tensor([rows[0].block_table, [0], [0]], dtype=torch.int64)
    starts = torch.tensor([0, 5, 5, 5], dtype=torch.int32)
    lengths = torch.tensor([5, 0, 0], dtype=torch.int32)
    with guarded(query.shape, torch.float32) as out:
        prefill_attention(query, pool, LAYER, starts, tables, lengths, params, out)
    torch.testing.assert_close(out[:5], reference(query[:5], pool, rows, params))
    assert out[5:].isnan().all()

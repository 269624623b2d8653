"""Writing keys and values to a paged pool, copying blocks, and attending over them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.attention import AttentionParams, paged_attention
from kernels.attention_mask import QUERY_TILE
from kernels.attention_plan import AttentionRow, plan_attention
from kernels.block_copy import copy_blocks, copy_speed
from tests.kernels.pools import pool_of

LAYERS, KV_HEADS, HEADS, HEAD_DIM = 2, 2, 6, 8
PLAIN = AttentionParams(scale=1 / math.sqrt(HEAD_DIM))
KINDS = {
    "plain": PLAIN,
    "scaled": AttentionParams(scale=0.7),
    "window": AttentionParams(scale=0.5, window=9),
    "window of one": AttentionParams(scale=0.5, window=1),
    "soft cap": AttentionParams(scale=0.5, softcap=1.5),
    "all": AttentionParams(scale=0.5, window=5, softcap=1.5),
}


def make_pool(num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    shape = (num_blocks, LAYERS, 2, KV_HEADS, block_size, HEAD_DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def plain_attention(pool, layer, row: AttentionRow, query, params):
    """The formula in float64, one head and one position at a time: query [new, heads, head_dim]."""
    block_size, out = pool.shape[4], torch.empty(query.shape, dtype=torch.float64)
    kv = torch.cat([pool[block, layer] for block in row.block_table], dim=2).double()
    assert kv.shape[2] == len(row.block_table) * block_size
    for i, position in enumerate(range(row.start, row.end)):
        for head in range(HEADS):
            first = max(0, position + 1 - (params.window or position + 1))
            keys, values = kv[:, head * KV_HEADS // HEADS, first : position + 1]
            scores = keys @ query[i, head].double() * params.scale
            if params.softcap:
                scores = (scores / params.softcap).tanh() * params.softcap
            out[i, head] = scores.softmax(dim=0) @ values
    return out


def check_attention(pool, rows, params=PLAIN, layer=1, tolerance=1e-5):
    total = sum(row.end - row.start for row in rows)
    query = torch.randn((total, HEADS, HEAD_DIM), generator=torch.Generator().manual_seed(2)).to(
        pool.dtype
    )
    plan = plan_attention(pool.shape[4], rows, pool.dtype, [None, 3, params.window])
    found = paged_attention(query, pool_of(pool), layer, plan, params)
    first = 0
    for row in rows:
        part = slice(first, first + row.end - row.start)
        expected = plain_attention(pool, layer, row, query[part], params)
        torch.testing.assert_close(found[part].double(), expected, rtol=tolerance, atol=tolerance)
        first = part.stop


@st.composite
def steps(draw):
    """Rows of any kind, sharing blocks or not, in any order."""
    block_size = draw(st.sampled_from([1, 4, 16]))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        start = draw(st.integers(0, 40))
        end = start + draw(st.sampled_from([1, 1, 2, 7, 20]))
        blocks = -(-end // block_size)
        table = draw(st.lists(st.integers(1, 69), min_size=blocks, max_size=blocks))
        rows.append(AttentionRow(start, end, table))
    return block_size, rows


@settings(max_examples=120, deadline=None)
@given(steps(), st.sampled_from([*KINDS]))
def test_a_ragged_step_is_the_formula_for_each_row(step, kind):
    block_size, rows = step
    check_attention(make_pool(70, block_size), rows, KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_prefill_longer_than_a_tile_with_a_cached_prefix(kind):
    rows = [
        AttentionRow(0, QUERY_TILE + 30, [*range(1, 20)]),
        AttentionRow(35, QUERY_TILE + 36, [*range(30, 10, -1)]),
        AttentionRow(90, 91, [5, 9, 3, 8, 7, 2]),
    ]
    rows = [row._replace(block_table=_cut(row, 16)) for row in rows]
    check_attention(make_pool(40, 16), rows, KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_decode_rows_of_very_different_lengths(kind):
    rows = [
        AttentionRow(end - 1, end, [*range(1, 2 + (end - 1) // 16)]) for end in (1, 500, 16, 17)
    ]
    check_attention(make_pool(40, 16), rows, KINDS[kind])


def test_bfloat16_sums_in_float32():
    """Over 4,000 keys of equal weight a bfloat16 sum would stop growing."""
    pool = torch.zeros((251, LAYERS, 2, KV_HEADS, 16, HEAD_DIM), dtype=torch.bfloat16)
    pool[:, :, 1] = 1.0
    query = torch.ones((1, HEADS, HEAD_DIM), dtype=torch.bfloat16)
    plan = plan_attention(16, [AttentionRow(3999, 4000, [*range(1, 251)])], torch.bfloat16)
    found = paged_attention(query, pool_of(pool), 0, plan, PLAIN)
    torch.testing.assert_close(found, torch.ones_like(query))


@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_a_write_reaches_its_slots_and_no_other(block_size):
    pool = pool_of(make_pool(30, block_size))
    before = pool.elements.clone()
    tables = [[7, 3, 9, 4, *range(10, 25)], [2, 28, *range(10, 25)]]
    spans = [(2, 13), (0, 1)]
    kv = torch.randn(12, 2, KV_HEADS, HEAD_DIM)
    rows = [AttentionRow(*span, table) for span, table in zip(spans, tables, strict=True)]
    pool.write_rows(1, rows, kv)
    token = 0
    for table, (start, end) in zip(tables, spans, strict=True):
        for position in range(start, end):
            slot = (
                table[position // block_size],
                1,
                slice(None),
                slice(None),
                position % block_size,
            )
            torch.testing.assert_close(pool.elements[slot], kv[token], rtol=0, atol=0)
            before[slot] = kv[token]
            token += 1
    torch.testing.assert_close(pool.elements, before, rtol=0, atol=0)


def test_copies_run_in_order_and_copy_all_layers():
    pool = make_pool(6, 4)
    first, second = pool[1].clone(), pool[2].clone()
    copy_blocks(pool, [(1, 4), (2, 1)])
    torch.testing.assert_close(pool[4], first, rtol=0, atol=0)
    torch.testing.assert_close(pool[1], second, rtol=0, atol=0)


def test_the_speed_of_copies_is_one_that_memory_can_have():
    assert 1e8 < copy_speed(368_640) < 1e12


def _cut(row: AttentionRow, block_size: int) -> list[int]:
    return list(row.block_table)[: -(-row.end // block_size)]

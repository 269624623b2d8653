"""Paged attention of a block of queries with a range of keys, tile by tile, with a running softmax.
Shared by decode and prefill.

Online softmax: Milakov and Gimelshein, arXiv:1805.02867; over tiles kept on the chip as in
FlashAttention-2, arXiv:2307.08691. Powers of two in place of e^x, as the chips compute them.
"""

import math

import triton
import triton.language as tl

from kernels.attention import AttentionParams
from kernels.triton.paged import PagedLayer
from kernels.triton.stored import (
    head_factor,
    key_factor,
    load_centre,
    load_keys,
    load_open_keys,
    load_values,
    value_factor,
)

LOG2_E = math.log2(math.e)


def score_factors(params: AttentionParams) -> tuple[float, float]:
    """(factor, cap): base-2 logarithms of weights are factor · q · k, or with a soft cap
    cap · tanh(factor · q · k).
    """
    if params.softcap is None:
        return params.scale * LOG2_E, 0.0
    return params.scale / params.softcap, params.softcap * LOG2_E


@triton.jit
def attend(
    query: tl.tensor,
    seen_by: tl.tensor,
    first: tl.tensor,
    start: tl.tensor,
    stop: tl.tensor,
    row_start: tl.tensor,
    tail: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    paged: PagedLayer,
    factor: tl.tensor,
    cap: tl.tensor,
    tile: tl.constexpr,
    window: tl.constexpr,
    capped: tl.constexpr,
) -> tl.tensor:
    """Softmax over the keys at positions [start, stop), `start` a multiple of `tile`.

    query      [rows, padded_dim], zero in lanes without an element
    seen_by    [rows] int32: the position of each query
    first      keys before it are not read
    row_start  the position of the sequence's first query in this step; int4 alone needs it, and
    tail       where the tail of that position's block is told

    Returns
    best       [rows] float32: the greatest score, in powers of two; −inf without keys
    total      [rows] float32: the sum of weights 2^(score − best)
    sums       [rows, padded_dim] float32: the weighted sum of values, without `head_factor`
    """
    best = tl.full([query.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    sums = tl.zeros(query.shape, tl.float32)
    closed = stop
    if paged.kind == "int4":
        closed = tl.minimum(stop, row_start // paged.block_size * paged.block_size)
    for at in range(start, closed, tile):
        best, total, sums = _attend_tile(
            query, seen_by, best, total, sums, at, first, closed, None, table, kv_head, paged,
            factor, cap, tile, window, capped,
        )  # fmt: skip
    if paged.kind == "int4":
        of_row = tl.load(tail)
        for at in range(tl.maximum(start, closed), stop, tile):
            best, total, sums = _attend_tile(
                query, seen_by, best, total, sums, at, first, stop, of_row, table, kv_head, paged,
                factor, cap, tile, window, capped,
            )  # fmt: skip
    return best, total, sums


@triton.jit
def _attend_tile(
    query: tl.tensor,
    seen_by: tl.tensor,
    best: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    start: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    tail: tl.tensor | None,
    table: tl.tensor,
    kv_head: tl.tensor,
    paged: PagedLayer,
    factor: tl.tensor,
    cap: tl.tensor,
    tile: tl.constexpr,
    window: tl.constexpr,
    capped: tl.constexpr,
) -> tl.tensor:
    """Adds the keys and values at positions [start, start + tile) to best, total and sums.

    Positions outside of [first, end) are not read: their slots may hold anything. Keys come from
    `tail` where one is given.
    """
    position = start + tl.arange(0, tile)
    present = (position >= first) & (position < end)
    block = tl.load(table + position // paged.block_size, mask=present, other=0).to(tl.int64)
    slot = position % paged.block_size

    if tail is None:
        keys = load_keys(paged, block, kv_head, slot, present, query.dtype)
    else:
        keys = load_open_keys(paged, tail, kv_head, slot, present, query.dtype)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    scores *= factor * key_factor(paged, block, kv_head, slot, present)
    if capped:
        # tanh(x) = 1 − 2 / (e^2x + 1); 2 · log2(e) = 2.885…
        scores = cap * (1.0 - 2.0 / (tl.exp2(scores * 2.8853900817779268) + 1.0))
    seen = present[None, :] & (position[None, :] <= seen_by[:, None])
    if window is not None:
        seen = seen & (position[None, :] > seen_by[:, None] - window)
    scores = tl.where(seen, scores, float("-inf"))

    greatest = tl.maximum(best, tl.max(scores, axis=1))
    # A query that has seen no key yet: −inf − −inf would be NaN.
    origin = tl.where(greatest == float("-inf"), 0.0, greatest)
    weights = tl.exp2(scores - origin[:, None])
    kept = tl.exp2(best - origin)
    total = total * kept + tl.sum(weights, axis=1)
    weights *= value_factor(paged, block, kv_head, slot, present)
    values = load_values(paged, block, kv_head, slot, present, query.dtype)
    sums = tl.dot(weights.to(query.dtype), values, acc=sums * kept[:, None], input_precision="ieee")
    return greatest, total, sums


@triton.jit
def mean(paged: PagedLayer, total: tl.tensor, sums: tl.tensor, kv_head: tl.tensor) -> tl.tensor:
    """The weighted mean of values as they are stored, [rows, padded_dim] float32; zeros for a query
    without keys.
    """
    return sums / tl.where(total > 0, total, 1.0)[:, None] * head_factor(paged, kv_head)


@triton.jit
def with_centre(
    paged: PagedLayer, found: tl.tensor, total: tl.tensor, kv_head: tl.tensor
) -> tl.tensor:
    """The mean of values, from that of stored ones. Still zeros for a query without keys."""
    if paged.centres is not None:
        found += tl.where((total > 0)[:, None], load_centre(paged, kv_head)[None, :], 0.0)
    return found

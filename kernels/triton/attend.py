"""One tile of paged attention: scores of a block of queries with a tile of keys, and the running
softmax. Shared by decode and prefill.

Online softmax: Milakov and Gimelshein, arXiv:1805.02867; over tiles kept on the chip as in
FlashAttention-2, arXiv:2307.08691. Powers of two in place of e^x, as the chips compute them.
"""

import math

import triton
import triton.language as tl

from kernels.attention import AttentionParams
from kernels.triton.paged import E4M3_AS_HALF, as_numbers

LOG2_E = math.log2(math.e)


def score_factors(params: AttentionParams) -> tuple[float, float]:
    """(factor, cap): base-2 logarithms of weights are factor · q · k, or with a soft cap
    cap · tanh(factor · q · k).
    """
    if params.softcap is None:
        return params.scale * LOG2_E, 0.0
    return params.scale / params.softcap, params.softcap * LOG2_E


@triton.jit
def attend_tile(
    query: tl.tensor,
    seen_by: tl.tensor,
    best: tl.tensor,
    total: tl.tensor,
    sums: tl.tensor,
    start: tl.tensor,
    first: tl.tensor,
    end: tl.tensor,
    table: tl.tensor,
    kv_head: tl.tensor,
    elements: tl.tensor,
    scales: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    factor: tl.tensor,
    cap: tl.tensor,
    kv_heads: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    tile: tl.constexpr,
    kind: tl.constexpr,
    window: tl.constexpr,
    capped: tl.constexpr,
) -> tl.tensor:
    """Adds keys and values at positions [start, start + tile) to a running softmax.

    query    [rows, padded_dim], zero behind head_dim
    seen_by  [rows] int32: the position of each query
    best     [rows] float32: the greatest score so far, in powers of two; −inf before the first
    total    [rows] float32: the sum of weights 2^(score − best)
    sums     [rows, padded_dim] float32: the weighted sum of values, without fp8's scale

    Positions outside of [first, end) are not read: their slots may hold anything. Returns best,
    total and sums.
    """
    position = start + tl.arange(0, tile)
    present = (position >= first) & (position < end)
    block = tl.load(table + position // block_size, mask=present, other=0).to(tl.int64)
    vector = kv_head * block_size + position % block_size  # a key's in its block
    dim = tl.arange(0, padded_dim)
    inside = present[:, None] & (dim < head_dim)[None, :]
    at = elements + block[:, None] * block_stride + vector[:, None] * head_dim + dim[None, :]
    plane: tl.constexpr = kv_heads * block_size  # vectors from a key to its value

    keys = as_numbers(tl.load(at, mask=inside, other=0), query.dtype, kind)
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if kind == "int8":
        scale_at = scales + block * scale_stride + vector
        scores *= tl.load(scale_at, mask=present, other=0.0).to(tl.float32)[None, :]
    elif kind == "fp8":
        factor *= tl.load(scales + kv_head) * E4M3_AS_HALF
    scores *= factor
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
    if kind == "int8":
        value_scale = tl.load(scale_at + plane, mask=present, other=0.0).to(tl.float32)
        weights *= value_scale[None, :]
    values = as_numbers(tl.load(at + plane * head_dim, mask=inside, other=0), query.dtype, kind)
    sums = tl.dot(weights.to(query.dtype), values, acc=sums * kept[:, None], input_precision="ieee")
    return greatest, total, sums


@triton.jit
def mean(
    total: tl.tensor,
    sums: tl.tensor,
    scales: tl.tensor,
    kv_head: tl.tensor,
    kv_heads: tl.constexpr,
    kind: tl.constexpr,
) -> tl.tensor:
    """The weighted mean of values, [rows, padded_dim] float32; zeros for a query without keys."""
    result = sums / tl.where(total > 0, total, 1.0)[:, None]
    if kind == "fp8":
        result *= tl.load(scales + kv_heads + kv_head) * E4M3_AS_HALF
    return result

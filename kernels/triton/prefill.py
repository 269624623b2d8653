"""Paged attention for any number of new tokens a sequence, prefill and decode rows mixed in one
launch. The reference is `kernels.attention`.

A program takes a block of consecutive tokens of one sequence with all query heads of one KV head,
as many as fit its rows: a key is read once for all of them (FlashAttention-2, arXiv:2307.08691,
over pages as in arXiv:2309.06180).
"""

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionParams
from kernels.kv_pool import KvPool
from kernels.triton.attend import attend, mean, score_factors, with_centre
from kernels.triton.launch import checked, stages
from kernels.triton.paged import PagedLayer, element_of, paged_layer


def block_shape(head_dim: int, dtype: torch.dtype, kv_dtype: str) -> tuple[int, int, int]:
    """Queries (tokens times heads), keys of a tile and warps of a program, with which nothing that
    `static` compiles spills registers on sm_90 and 100; no card has timed them.
    """
    if dtype == torch.float32:  # no tensor cores: each thread holds what it multiplies
        return 32, 32 if head_dim <= 128 else 16, 8
    if head_dim <= 64:
        return 64, 64, 4
    rows = 64 if head_dim <= 128 else 32
    if kv_dtype == "int4":  # to make numbers of them takes registers
        return rows, rows, 8
    return rows, 32, 8 if kv_dtype in ("fp8", "int8") and head_dim > 128 else 4


def prefill_attention(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    starts: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    params: AttentionParams,
    out: torch.Tensor | None = None,
    tails: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the last tokens of each row over its sequence, causal.

    query    [tokens, heads, head_dim] float32, bfloat16 or float16, each token in one run; products
             are computed in its dtype, sums in float32
    starts   [rows + 1] int32: row i has the queries [starts[i], starts[i + 1]), maybe none
    tables   [rows, blocks] int32 or int64, on the pool's device as all the others
    lengths  [rows] int32: tokens of each sequence, the new ones included, whose keys and values are
             in the pool
    out      takes the result if it is given: as `query`, contiguous
    tails    [tokens] int64, of an int4 pool, whose rows lie within one block each: where the keys
             of that block are; see `AttentionRow`

    Slots that hold no token that a row sees may hold anything. Of tokens from starts[rows] on,
    which pad a batch, the result is not written. Nothing waits for the device, and the launch
    depends on shapes alone: it can be captured in a CUDA graph.
    """
    layout = pool.layout
    tokens, heads, head_dim = query.shape
    rows = len(lengths)
    out = checked(query, pool, tables, lengths, out, tails)
    assert len(starts) == rows + 1
    if tokens == 0 or rows == 0:
        return out
    paged = paged_layer(pool, layer)
    factor, cap = score_factors(params)
    group = heads // layout.num_kv_heads
    block_rows, tile, warps = block_shape(head_dim, query.dtype, layout.dtype)
    packed = min(group, block_rows)  # heads of a program
    head_blocks = triton.cdiv(group, packed)
    most_blocks = tokens // (block_rows // packed) + rows  # see `find_row`
    prefill_kernel[(most_blocks, layout.num_kv_heads * head_blocks)](
        query,
        out,
        starts,
        tables,
        lengths,
        tails,
        paged,
        rows,
        query.stride(0),
        tables.stride(0),
        factor,
        cap,
        group=group,
        packed=packed,
        head_blocks=head_blocks,
        block_rows=block_rows,
        tile=tile,
        window=params.window,
        capped=params.softcap is not None,
        num_warps=warps,
        num_stages=stages(layout.dtype),
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def find_row(starts: tl.tensor, rows: tl.tensor, block: tl.tensor, size: tl.constexpr) -> tl.tensor:
    """The row that query block `block` belongs to, and the first block of that row.

    Row i has the blocks from starts[i] // size + i to the next row's first: at least as many as its
    queries fill, whatever they are, so that no list of blocks has to be made first.
    """
    low, high = tl.full([], 0, tl.int32), rows  # a tensor for a single row as well
    while high - low > 1:
        middle = (low + high) // 2
        reached = tl.load(starts + middle) // size + middle <= block
        low = tl.where(reached, middle, low)
        high = tl.where(reached, high, middle)
    return low, tl.load(starts + low) // size + low


@triton.jit(do_not_specialize=["rows"])
def prefill_kernel(
    query: tl.tensor,
    out: tl.tensor,
    starts: tl.tensor,
    tables: tl.tensor,
    lengths: tl.tensor,
    tails: tl.tensor | None,
    paged: PagedLayer,
    rows: tl.tensor,
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    factor: tl.tensor,
    cap: tl.tensor,
    group: tl.constexpr,
    packed: tl.constexpr,
    head_blocks: tl.constexpr,
    block_rows: tl.constexpr,
    tile: tl.constexpr,
    window: tl.constexpr,
    capped: tl.constexpr,
) -> None:
    """A program attends with `packed` heads of block_rows // packed tokens of one row."""
    size: tl.constexpr = block_rows // packed
    block = tl.program_id(0)
    row, first_block = find_row(starts, rows, block, size)
    begin = tl.load(starts + row)
    count = tl.load(starts + row + 1) - begin
    token = (block - first_block) * size  # of the row
    if token >= count:
        return
    length = tl.load(lengths + row)
    before = length - count  # tokens of the sequence before the row's queries

    kv_head = tl.program_id(1) // head_blocks
    lane = tl.arange(0, block_rows)
    in_group = tl.program_id(1) % head_blocks * packed + lane % packed
    token_of = token + lane // packed
    real = (in_group < group) & (lane < size * packed) & (token_of < count)
    element, exists = element_of(paged, tl.arange(0, paged.padded_dim))
    inside = real[:, None] & exists[None, :]
    places = (kv_head * group + in_group)[:, None] * paged.head_dim + element[None, :]
    index = (begin + token_of).to(tl.int64)[:, None]
    queries = tl.load(query + index * query_stride + places, mask=inside, other=0.0)

    end = before + tl.minimum(token + size, count)
    first = 0
    if window is not None:
        first = tl.maximum(before + token - window + 1, 0)
    if tails is not None:
        tails += begin
    _, total, sums = attend(
        queries, before + token_of, first, first // tile * tile, end, before, tails,
        tables + row.to(tl.int64) * table_stride, kv_head, paged, factor, cap, tile, window, capped,
    )  # fmt: skip

    found = with_centre(paged, mean(paged, total, sums, kv_head), total, kv_head)
    to = out + index * (paged.kv_heads * group * paged.head_dim) + places
    tl.store(to, found.to(out.dtype.element_ty), mask=inside)

"""Paged attention for one new token a sequence. The reference is `kernels.attention`.

The keys of a sequence are split over several programs, so that few long sequences fill a chip, and
a second kernel joins their results (FlashDecoding: Dao, Haziza, Massa and Sizov, 2023). Query
heads that share a KV head are rows of one block of 16, the least that tensor cores take: each key
is read once for all of them.
"""

import torch
import triton
import triton.language as tl

from kernels.attention import AttentionParams
from kernels.kv_pool import KvPool
from kernels.triton.attend import attend, mean, score_factors, with_centre
from kernels.triton.launch import checked, stages
from kernels.triton.paged import PagedLayer, element_of, paged_layer
from kernels.triton.stored import load_centre

ROWS = 16  # query heads of a program
MOST_SPLITS = 32
FEWEST_KEYS = 256  # of a split, so that joining stays a small part; not measured on a chip


def splits_for(
    rows: int, num_heads: int, num_kv_heads: int, longest: int, multiprocessors: int
) -> int:
    """Programs that share the keys of one sequence: a power of two.

    Enough for two programs on each of the chip's `multiprocessors` with `rows` sequences, while
    the `longest`, in keys, gives each FEWEST_KEYS. With a CUDA graph, `rows` and `longest` are
    those that it was captured for.
    """
    programs = rows * num_kv_heads * triton.cdiv(num_heads // num_kv_heads, ROWS)
    wanted = triton.cdiv(2 * multiprocessors, max(1, programs))
    useful: int = min(wanted, longest // FEWEST_KEYS, MOST_SPLITS)
    return 1 << max(0, useful.bit_length() - 1)


def tile_keys(head_dim: int, dtype: torch.dtype, kv_dtype: str) -> int:
    """Keys of a tile, so that the tiles in flight leave room in shared memory for several programs:
    each takes under 52 KB of 160 KB on sm_80. With int4 half as many, since the threads hold scales
    and zeros as well: still 16 bytes for each to load.
    """
    vector: int = triton.next_power_of_2(head_dim) * dtype.itemsize
    return max(16, min(64, (8192 if kv_dtype == "int4" else 16384) // vector))


def decode_attention(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    params: AttentionParams,
    num_splits: int = 1,
    out: torch.Tensor | None = None,
    tails: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention of the last token of each row over all keys and values of its sequence.

    query    [rows, heads, head_dim] float32, bfloat16 or float16, each row in one run; products are
             computed in its dtype, sums in float32
    tables   [rows, blocks] int32 or int64, on the pool's device as all the others
    lengths  [rows] int32: tokens of each sequence, its last included, whose keys and values are in
             the pool; a row of 0 is padding, and its result zeros
    out      takes the result if it is given: as `query`, contiguous
    tails    [rows] int64, of an int4 pool: where the keys of each row's last block are; see
             `AttentionRow`

    Slots that hold no token that a row sees may hold anything. Nothing waits for the device, and
    the launch depends on shapes and `num_splits` (see `splits_for`) alone: it can be captured in a
    CUDA graph.
    """
    layout = pool.layout
    rows, heads, head_dim = query.shape
    out = checked(query, pool, tables, lengths, out, tails)
    assert len(lengths) == rows
    assert num_splits.bit_count() == 1, "splits are a power of two"
    if rows == 0:
        return out
    means = logs = None
    if num_splits > 1:
        shape = (rows, heads, num_splits)
        means = torch.empty((*shape, head_dim), dtype=torch.float32, device=query.device)
        logs = torch.empty(shape, dtype=torch.float32, device=query.device)
    paged = paged_layer(pool, layer)
    factor, cap = score_factors(params)
    group = heads // layout.num_kv_heads
    head_blocks = triton.cdiv(group, ROWS)
    decode_kernel[(rows, layout.num_kv_heads * head_blocks, num_splits)](
        query,
        out if means is None else means,
        logs,
        tables,
        lengths,
        tails,
        paged,
        query.stride(0),
        tables.stride(0),
        factor,
        cap,
        group=group,
        head_blocks=head_blocks,
        rows=ROWS,
        tile=tile_keys(head_dim, query.dtype, layout.dtype),
        splits=num_splits,
        window=params.window,
        capped=params.softcap is not None,
        num_warps=4,
        num_stages=stages(layout.dtype),
        enable_fp_fusion=True,
    )
    if means is not None:
        join_kernel[(rows * heads,)](
            means, logs, out, paged, group=group, splits=num_splits, num_warps=4,
            enable_fp_fusion=True,
        )  # fmt: skip
    return out


@triton.jit
def decode_kernel(
    query: tl.tensor,
    result: tl.tensor,
    logs: tl.tensor,
    tables: tl.tensor,
    lengths: tl.tensor,
    tails: tl.tensor | None,
    paged: PagedLayer,
    query_stride: tl.tensor,
    table_stride: tl.tensor,
    factor: tl.tensor,
    cap: tl.tensor,
    group: tl.constexpr,
    head_blocks: tl.constexpr,
    rows: tl.constexpr,
    tile: tl.constexpr,
    splits: tl.constexpr,
    window: tl.constexpr,
    capped: tl.constexpr,
) -> None:
    """A program attends with `rows` query heads of one sequence over one split of its keys.

    result   [sequences, heads, splits, head_dim]
    logs     [sequences, heads, splits] float32: the base-2 logarithm of each total; None for one
             split
    """
    sequence = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1) // head_blocks
    split = tl.program_id(2)
    in_group = tl.program_id(1) % head_blocks * rows + tl.arange(0, rows)
    head = kv_head * group + in_group
    element, real = element_of(paged, tl.arange(0, paged.padded_dim))
    inside = (in_group < group)[:, None] & real[None, :]
    places = head[:, None] * paged.head_dim + element[None, :]
    queries = tl.load(query + sequence * query_stride + places, mask=inside, other=0.0)

    length = tl.load(lengths + sequence)
    first = 0
    if window is not None:
        first = tl.maximum(length - window, 0)
    first_tile = first // tile
    share = tl.cdiv(tl.cdiv(length, tile) - first_tile, splits)  # tiles of a split
    start = (first_tile + split * share) * tile
    stop = tl.minimum(start + share * tile, length)

    seen_by = tl.zeros([rows], tl.int32) + (length - 1)
    if tails is not None:
        tails += sequence
    best, total, sums = attend(
        queries, seen_by, first, start, stop, length - 1, tails, tables + sequence * table_stride,
        kv_head, paged, factor, cap, tile, window, capped,
    )  # fmt: skip

    found = mean(paged, total, sums, kv_head)
    if splits == 1:
        found = with_centre(paged, found, total, kv_head)
    part = (sequence * paged.kv_heads * group + head) * splits + split
    to = result + part[:, None] * paged.head_dim + element[None, :]
    tl.store(to, found.to(result.dtype.element_ty), mask=inside)
    if splits > 1:
        log = tl.where(total > 0, best + tl.log2(total), float("-inf"))
        tl.store(logs + part, log, mask=in_group < group)


@triton.jit
def join_kernel(
    means: tl.tensor,
    logs: tl.tensor,
    out: tl.tensor,
    paged: PagedLayer,
    group: tl.constexpr,
    splits: tl.constexpr,
) -> None:
    """A program joins the splits of one head: their means, weighted with their totals."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, splits)
    element, inside = element_of(paged, tl.arange(0, paged.padded_dim))
    log = tl.load(logs + head * splits + split)
    greatest = tl.max(log, axis=0)
    weights = tl.exp2(log - tl.where(greatest == float("-inf"), 0.0, greatest))
    places = (head * splits + split)[:, None] * paged.head_dim + element[None, :]
    parts = tl.load(means + places, mask=inside[None, :], other=0.0)
    total = tl.sum(weights, axis=0)
    joined = tl.sum(parts * weights[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    if paged.centres is not None:
        kv_head = head // group % paged.kv_heads
        joined += tl.where(total > 0, load_centre(paged, kv_head), 0.0)
    to = out + head * paged.head_dim + element
    tl.store(to, joined.to(out.dtype.element_ty), mask=inside)

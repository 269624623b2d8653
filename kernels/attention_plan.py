"""What a step's attention needs that depends on the step alone: tables and masks, made once and
used in every layer.

Sequences of one step are split in two kinds:

    one new token    batched, padded to the longest table of the batch, the padding masked
    several tokens   one sequence at a time, in tiles of QUERY_TILE queries over the keys they see
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.attention_mask import QUERY_TILE, TileMasks, decode_mask


class AttentionRow(NamedTuple):
    """New tokens of one sequence: positions [start, end), whose KV and all before it is in
    `block_table`.
    """

    start: int
    end: int
    block_table: Sequence[int]
    tail: int = -1  # of an int4 pool, where a row is within a block: where that block's keys are


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    tokens: torch.Tensor  # [batch] int64: where each row's query is in the flattened step
    rows: Sequence[AttentionRow]
    tables: torch.Tensor  # [batch, blocks] int64, padded with the null block
    masks: Mapping[int | None, torch.Tensor]  # by window: [batch, 1, 1, blocks · block_size]


@dataclass(frozen=True, slots=True)
class PrefillTile:
    first: int  # of its queries in the flattened step
    last: int  # exclusive
    num_keys: int
    masks: Mapping[int | None, torch.Tensor]  # by window: [1, 1, last - first, num_keys], views


@dataclass(frozen=True, slots=True)
class PrefillRow:
    row: AttentionRow
    table: torch.Tensor  # [1, blocks] int64
    tiles: Sequence[PrefillTile]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    decodes: Sequence[DecodeBatch]
    prefills: Sequence[PrefillRow]


def plan_attention(
    block_size: int,
    rows: Sequence[AttentionRow],
    dtype: torch.dtype,
    windows: Sequence[int | None] = (None,),
) -> AttentionPlan:
    """Tables and masks for one step, the masks in `dtype`.

    `rows` are in the order of the flattened tokens, `windows` those of the model's layers, each
    once. The pool holds no NaN or infinity, in unused
    blocks either: padding is masked by adding −inf to a score.
    """
    firsts = _first_tokens(rows)
    decodes = [i for i, row in enumerate(rows) if row.end - row.start == 1]
    prefills = [i for i, row in enumerate(rows) if row.end - row.start > 1]
    furthest = max((rows[i].start + _last_tile(rows[i]) for i in prefills), default=0)
    masks = {window: TileMasks(furthest, window, dtype) for window in windows}
    return AttentionPlan(
        decodes=[
            _decode_batch(
                block_size, [rows[i] for i in group], [firsts[i] for i in group], dtype, windows
            )
            for group in _by_length(rows, decodes, block_size)
        ],
        prefills=[_prefill_row(block_size, rows[i], firsts[i], masks) for i in prefills],
    )


def _first_tokens(rows: Sequence[AttentionRow]) -> list[int]:
    firsts, total = [], 0
    for row in rows:
        firsts.append(total)
        total += row.end - row.start
    return firsts


def _by_length(
    rows: Sequence[AttentionRow], indices: Sequence[int], block_size: int
) -> list[list[int]]:
    """Groups rows whose tables need about as many blocks, so that padding at most doubles a row's
    work.
    """
    groups: dict[int, list[int]] = {}
    for i in indices:
        blocks = -(-rows[i].end // block_size)
        groups.setdefault(blocks.bit_length(), []).append(i)
    return list(groups.values())


def _decode_batch(
    block_size: int,
    rows: Sequence[AttentionRow],
    tokens: Sequence[int],
    dtype: torch.dtype,
    windows: Sequence[int | None],
) -> DecodeBatch:
    counts = [-(-row.end // block_size) for row in rows]
    width = max(counts)
    tables = torch.tensor(
        [
            [*row.block_table[:count], *([0] * (width - count))]
            for row, count in zip(rows, counts, strict=True)
        ],
        dtype=torch.int64,
    )
    ends = [row.end for row in rows]
    return DecodeBatch(
        torch.tensor(tokens, dtype=torch.int64),
        rows,
        tables,
        {w: decode_mask(ends, width * block_size, w, dtype) for w in windows},
    )


def _prefill_row(
    block_size: int, row: AttentionRow, first: int, masks: Mapping[int | None, TileMasks]
) -> PrefillRow:
    blocks = -(-row.end // block_size)
    table = torch.tensor([row.block_table[:blocks]], dtype=torch.int64)
    tiles = [
        _tile(row, first, start, min(start + QUERY_TILE, row.end), masks)
        for start in range(row.start, row.end, QUERY_TILE)
    ]
    return PrefillRow(row, table, tiles)


def _last_tile(row: AttentionRow) -> int:
    return (row.end - row.start - 1) // QUERY_TILE * QUERY_TILE


def _tile(
    row: AttentionRow, first: int, start: int, end: int, masks: Mapping[int | None, TileMasks]
) -> PrefillTile:
    """The tile of queries at positions [start, end)."""
    offset = first - row.start
    views = {window: mask.tile(start, end) for window, mask in masks.items()}
    return PrefillTile(start + offset, end + offset, end, views)

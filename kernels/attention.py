"""Paged attention in plain torch: gathers the blocks of a sequence, then calls the fused attention.

The reference for other kernels, and what runs where there is none. Sequences of one step are split
in two kinds:

    one new token    batched, padded to the longest table of the batch, the padding masked
    several tokens   one sequence at a time, in tiles of QUERY_TILE queries over the keys they see

What depends on the step alone (indices, masks) is made once by `plan_attention` and used in every
layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

QUERY_TILE = 256


class AttentionRow(NamedTuple):
    """New tokens of one sequence: positions [start, end), whose KV and all before it is in
    `block_table`.
    """

    start: int
    end: int
    block_table: Sequence[int]


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    tokens: torch.Tensor  # [batch] int64: where each row's query is in the flattened step
    gather: (
        torch.Tensor
    )  # [2 · batch · kv_heads · blocks] int64: rows of pool.view(-1, slot · element)
    mask: torch.Tensor  # [batch, 1, 1, blocks · block_size], 0 or −inf


@dataclass(frozen=True, slots=True)
class PrefillTile:
    first: int  # of its queries in the flattened step
    last: int  # exclusive
    num_keys: int
    mask: torch.Tensor  # [last - first, num_keys], a view of the step's causal mask


@dataclass(frozen=True, slots=True)
class PrefillRow:
    gather: torch.Tensor  # [2 · kv_heads · blocks] int64
    tiles: Sequence[PrefillTile]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    decodes: Sequence[DecodeBatch]
    prefills: Sequence[PrefillRow]


def plan_attention(pool: torch.Tensor, rows: Sequence[AttentionRow]) -> AttentionPlan:
    """Indices and masks for one step over `pool` [blocks, layers, 2, kv_heads, block_size,
    head_dim].

    `rows` are in the order of the flattened tokens. The pool holds no NaN or infinity, in unused
    blocks either: padding is masked by adding −inf to a score.
    """
    firsts = _first_tokens(rows)
    decodes = [i for i, row in enumerate(rows) if row.end - row.start == 1]
    prefills = [i for i, row in enumerate(rows) if row.end - row.start > 1]
    causal = _causal_mask([rows[i] for i in prefills], pool.dtype)
    return AttentionPlan(
        decodes=[
            _decode_batch(pool, [rows[i] for i in group], [firsts[i] for i in group])
            for group in _by_length(rows, decodes, pool.shape[4])
        ],
        prefills=[_prefill_row(pool, rows[i], firsts[i], causal) for i in prefills],
    )


def paged_attention(
    query: torch.Tensor, pool: torch.Tensor, layer: int, plan: AttentionPlan
) -> torch.Tensor:
    """softmax(q · kᵀ / √head_dim) · v over the paged keys and values of `layer`, causal per
    sequence.

    `query` is [tokens, heads, head_dim] in the pool's dtype, heads a multiple of kv_heads; so is
    the result. The step's own keys and values are in the pool already. Scores and sums are float32.
    """
    out = torch.empty(query.shape, dtype=query.dtype)
    for batch in plan.decodes:
        _decode(query, pool, layer, batch, out)
    for row in plan.prefills:
        _prefill(query, pool, layer, row, out)
    return out


def _decode(
    query: torch.Tensor, pool: torch.Tensor, layer: int, batch: DecodeBatch, out: torch.Tensor
) -> None:
    keys, values = _gather(pool, layer, batch.gather, len(batch.tokens))
    heads = query[batch.tokens].unsqueeze(2)
    result = scaled_dot_product_attention(
        heads, keys, values, attn_mask=batch.mask, enable_gqa=True
    )
    out[batch.tokens] = result.squeeze(2)


def _prefill(
    query: torch.Tensor, pool: torch.Tensor, layer: int, row: PrefillRow, out: torch.Tensor
) -> None:
    keys, values = _gather(pool, layer, row.gather, 1)
    for tile in row.tiles:
        result = scaled_dot_product_attention(
            query[tile.first : tile.last].transpose(0, 1).unsqueeze(0),
            keys[:, :, : tile.num_keys],
            values[:, :, : tile.num_keys],
            attn_mask=tile.mask,
            enable_gqa=True,
        )
        out[tile.first : tile.last] = result.squeeze(0).transpose(0, 1)


def _gather(
    pool: torch.Tensor, layer: int, index: torch.Tensor, batch: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, each [batch, kv_heads, blocks · block_size, head_dim]."""
    kv_heads, block_size, head_dim = pool.shape[3:]
    rows = pool.view(-1, block_size * head_dim)[layer * 2 * kv_heads :]
    keys, values = rows.index_select(0, index).view(2, batch, kv_heads, -1, head_dim)
    return keys, values


def _gather_index(pool: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
    """Rows of layer 0 in `pool.view(-1, block_size · head_dim)`, for tables [batch, blocks]; in the
    order [2, batch, kv_heads, blocks], so that gathering yields keys and values ready for
    attention.
    """
    _, layers, _, kv_heads, _, _ = pool.shape
    planes = torch.arange(2 * kv_heads).view(2, 1, kv_heads, 1)
    return (tables[None, :, None, :] * (layers * 2 * kv_heads) + planes).flatten()


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
    pool: torch.Tensor, rows: Sequence[AttentionRow], tokens: Sequence[int]
) -> DecodeBatch:
    block_size = pool.shape[4]
    counts = [-(-row.end // block_size) for row in rows]
    width = max(counts)
    tables = torch.tensor(
        [
            [*row.block_table[:count], *([0] * (width - count))]
            for row, count in zip(rows, counts, strict=True)
        ],
        dtype=torch.int64,
    )
    ends = torch.tensor([row.end for row in rows])
    hidden = torch.arange(width * block_size) >= ends[:, None]
    mask = torch.zeros(hidden.shape, dtype=pool.dtype).masked_fill_(hidden, -torch.inf)
    return DecodeBatch(
        torch.tensor(tokens, dtype=torch.int64), _gather_index(pool, tables), mask[:, None, None, :]
    )


def _prefill_row(
    pool: torch.Tensor, row: AttentionRow, first: int, causal: torch.Tensor
) -> PrefillRow:
    blocks = -(-row.end // pool.shape[4])
    table = torch.tensor([row.block_table[:blocks]], dtype=torch.int64)
    tiles = [
        _tile(row, first, start, min(start + QUERY_TILE, row.end), causal)
        for start in range(row.start, row.end, QUERY_TILE)
    ]
    return PrefillRow(_gather_index(pool, table), tiles)


def _causal_mask(rows: Sequence[AttentionRow], dtype: torch.dtype) -> torch.Tensor:
    """One mask whose slices serve every tile: [QUERY_TILE, furthest + QUERY_TILE], where `furthest`
    is the highest position that starts a tile. Query i may see column c when c ≤ furthest + i; a
    tile that starts earlier reads the mask further to the right.
    """
    furthest = max((row.start + _last_tile(row) for row in rows), default=0)
    mask = torch.full((QUERY_TILE, furthest + QUERY_TILE), -torch.inf, dtype=dtype)
    return mask.triu_(furthest + 1)


def _last_tile(row: AttentionRow) -> int:
    return (row.end - row.start - 1) // QUERY_TILE * QUERY_TILE


def _tile(row: AttentionRow, first: int, start: int, end: int, causal: torch.Tensor) -> PrefillTile:
    """The tile of queries at positions [start, end). Query i sees keys [0, start + i]."""
    origin = causal.shape[1] - QUERY_TILE - start
    mask = causal[: end - start, origin : origin + end]
    return PrefillTile(first + start - row.start, first + end - row.start, end, mask)

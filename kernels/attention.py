"""Paged attention in plain torch: gathers the blocks of a sequence, then calls the fused attention.

The reference for other kernels, and what runs where there is none.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.attention_plan import AttentionPlan, DecodeBatch, PrefillRow
from kernels.kv_pool import KvPool


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """How one layer attends: softmax(cap(scale · q · kᵀ)) · v over the keys that a query sees."""

    scale: float  # usually 1 / √head_dim
    window: int | None = None  # tokens, the query's own included; None: all before it
    softcap: float | None = None  # c: scores become c · tanh(score / c), as in Gemma 2


def paged_attention(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    plan: AttentionPlan,
    params: AttentionParams,
) -> torch.Tensor:
    """Attention as `params` say over the paged keys and values of `layer`, causal per sequence.

    `params.window` is one of those that the plan was made for. `query` is [tokens, heads, head_dim]
    in the plan's dtype, heads a multiple of kv_heads; so is the result. The step's own keys and
    values are in the pool already. Scores and sums are float32.
    """
    out = torch.empty(query.shape, dtype=query.dtype)
    for batch in plan.decodes:
        _decode(query, pool, layer, batch, params, out)
    for row in plan.prefills:
        _prefill(query, pool, layer, row, params, out)
    return out


def _decode(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    batch: DecodeBatch,
    params: AttentionParams,
    out: torch.Tensor,
) -> None:
    keys, values = pool.read(layer, batch.tables, batch.rows, query.dtype)
    heads = query[batch.tokens].unsqueeze(2)
    result = _attend(heads, keys, values, batch.masks[params.window], params)
    out[batch.tokens] = result.squeeze(2)


def _prefill(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    row: PrefillRow,
    params: AttentionParams,
    out: torch.Tensor,
) -> None:
    keys, values = pool.read(layer, row.table, [row.row], query.dtype)
    for tile in row.tiles:
        result = _attend(
            query[tile.first : tile.last].transpose(0, 1).unsqueeze(0),
            keys[:, :, : tile.num_keys],
            values[:, :, : tile.num_keys],
            tile.masks[params.window],
            params,
        )
        out[tile.first : tile.last] = result.squeeze(0).transpose(0, 1)


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    params: AttentionParams,
) -> torch.Tensor:
    """Query [batch, heads, tokens, head_dim] over keys and values [batch, kv_heads, keys,
    head_dim].
    """
    if params.softcap is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=params.scale, enable_gqa=True
        )
    return _softcapped(query, keys, values, mask, params.scale, params.softcap)


def _softcapped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    cap: float,
) -> torch.Tensor:
    """What the fused attention has no argument for: tanh between the scores and the softmax."""
    batch, _, tokens, head_dim = query.shape
    grouped = query.float().view(batch, keys.shape[1], -1, tokens, head_dim)
    scores = grouped @ keys.float().transpose(-1, -2).unsqueeze(2)
    scores.mul_(scale / cap).tanh_().mul_(cap).add_(mask.unsqueeze(1))
    result = scores.softmax(dim=-1) @ values.float().unsqueeze(2)
    return result.view(query.shape).to(query.dtype)

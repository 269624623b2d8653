"""Writes new keys and values to their slots in the paged pool: the plain torch version, the
reference for others.
"""

from collections.abc import Sequence

import torch


def kv_write_index(
    pool: torch.Tensor, block_tables: Sequence[Sequence[int]], spans: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Where each new token goes in layer 0, as rows of `pool.view(-1, head_dim)`: int64 [tokens · 2
    · kv_heads].

    `spans` gives the positions [start, end) that each sequence writes; tokens are in the sequences'
    order. The index of another layer is this one plus a constant, which `kv_write` adds by slicing.
    """
    _, layers, _, kv_heads, block_size, _ = pool.shape
    slots = [
        _slots(table, span, block_size) for table, span in zip(block_tables, spans, strict=True)
    ]
    blocks, offsets = torch.cat(slots, dim=1)
    planes = torch.arange(2 * kv_heads)
    rows = (blocks[:, None] * (layers * 2 * kv_heads) + planes) * block_size + offsets[:, None]
    index: torch.Tensor = rows.flatten()
    return index


def kv_write(pool: torch.Tensor, layer: int, index: torch.Tensor, kv: torch.Tensor) -> None:
    """Writes `kv` [tokens, 2, kv_heads, head_dim] (keys, then values), in the pool's dtype, into
    `layer`.

    `pool` is [num_blocks, num_layers, 2, kv_heads, block_size, head_dim] and contiguous; `index`
    comes from `kv_write_index`.
    """
    _, _, _, kv_heads, block_size, head_dim = pool.shape
    rows = pool.view(-1, head_dim)[layer * 2 * kv_heads * block_size :]
    rows.index_copy_(0, index, kv.reshape(-1, head_dim))


def _slots(table: Sequence[int], span: tuple[int, int], block_size: int) -> torch.Tensor:
    """Block and offset of the positions [start, end): int64 [2, end - start]."""
    start, end = span
    first = start // block_size
    blocks = torch.tensor(table[first : -(-end // block_size)], dtype=torch.int64)
    positions = torch.arange(start, end)
    return torch.stack((blocks[positions // block_size - first], positions % block_size))

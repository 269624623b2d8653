"""Whole-block copies inside one KV pool."""

from collections.abc import Iterable

import torch


def copy_blocks(pool: torch.Tensor, copies: Iterable[tuple[int, int]]) -> None:
    """Copies pool[source] to pool[destination] for each (source, destination), in order.

    A block is one contiguous run of `pool` [num_blocks, ...], so each copy is one memory move.
    """
    for source, destination in copies:
        pool[destination].copy_(pool[source])

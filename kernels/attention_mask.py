"""Which keys a query sees, as masks that are added to scores: 0 or −inf.

A query at position p sees the keys [0, p], and with a sliding window w (Beltagy et al.,
arXiv:2004.05150, as Mistral counts it: itself included) only (p − w, p].
"""

from collections.abc import Sequence

import torch

QUERY_TILE = 256


def decode_mask(
    ends: Sequence[int], num_keys: int, window: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """For queries that are the last tokens of sequences of lengths `ends`: [batch, 1, 1,
    num_keys].
    """
    lengths, keys = torch.tensor(ends)[:, None], torch.arange(num_keys)
    hidden = keys >= lengths
    if window is not None:
        hidden |= keys < lengths - window
    mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -torch.inf)
    return mask[:, None, None, :]


class TileMasks:
    """One mask whose slices serve every tile of queries of a step.

    [QUERY_TILE, furthest + QUERY_TILE], where `furthest` is the highest position that starts a
    tile. Query i may see column c when c ≤ furthest + i; a tile that starts earlier reads the mask
    further to the right.
    """

    def __init__(self, furthest: int, window: int | None, dtype: torch.dtype) -> None:
        mask = torch.full((QUERY_TILE, furthest + QUERY_TILE), -torch.inf, dtype=dtype)
        mask.triu_(furthest + 1)
        if window is not None and window < furthest + QUERY_TILE:
            queries = torch.arange(QUERY_TILE)[:, None] + furthest
            mask.masked_fill_(torch.arange(mask.shape[1]) <= queries - window, -torch.inf)
        self._mask = mask
        self._furthest = furthest

    def tile(self, start: int, end: int) -> torch.Tensor:
        """For queries at positions [start, end) over keys [0, end): a view [1, 1, queries, end]."""
        origin = self._furthest - start
        return self._mask[None, None, : end - start, origin : origin + end]

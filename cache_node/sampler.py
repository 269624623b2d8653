"""Chooses one token per row from its logits.

The order is vLLM's: banned tokens, temperature, min-p, top-k, top-p, each on the distribution that
the one before left. What is kept is decided by a threshold on the logit, so that tied tokens stay
or go together and the choice does not depend on a sort. Then the token is the inverse of the
cumulative distribution, in token-id order, at a number that depends on (seed, sample index,
position) alone.
"""

import math
import struct
from collections.abc import Sequence
from hashlib import blake2b

import torch

from cache_node.sampling import SampleSpec

ROWS_AT_ONCE = 4
"""Keeps the float64 copies of a large vocabulary's logits inside the processor's cache."""

BINS, BINS_PER_NAT = 4096, 64


def sample(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    """Token ids for `logits` [rows, vocab], float32, one spec a row. Changes `logits`."""
    for row, spec in enumerate(specs):
        if spec.banned:
            logits[row, list(spec.banned)] = -torch.inf
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row, spec in enumerate(specs) if not spec.params.greedy]
    for start in range(0, len(drawn), ROWS_AT_ONCE):
        rows = drawn[start : start + ROWS_AT_ONCE]
        choices = _draw(logits[rows], [specs[row] for row in rows])
        for row, token in zip(rows, choices, strict=True):
            tokens[row] = token
    return tokens


def uniform(seed: int, sample_index: int, position: int) -> float:
    """A number in [0, 1) for one token of one sample: 52 bits of blake2b over the three 64-bit
    integers.

    With 52 bits the product with a float64 total stays below that total, so the inverse always
    exists.
    """
    counter = struct.pack("<QQQ", seed & (2**64 - 1), sample_index, position)
    digest = blake2b(counter, digest_size=8, person=b"kvmesh-sample").digest()
    return float(int.from_bytes(digest, "little") >> 12) / 2.0**52


def _draw(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> list[int]:
    scaled = _temper(logits, specs)
    weights = scaled.exp()
    weights[scaled < _thresholds(scaled, weights, specs)] = 0.0
    cumulative = weights.cumsum(dim=-1)
    numbers = [uniform(s.params.seed, s.sample_index, s.position) for s in specs]
    targets = cumulative[:, -1:] * torch.tensor(numbers, dtype=torch.float64)[:, None]
    choices: list[int] = torch.searchsorted(cumulative, targets, right=True).flatten().tolist()
    return choices


def _temper(logits: torch.Tensor, specs: Sequence[SampleSpec]) -> torch.Tensor:
    """Logits over temperature as float64, shifted so that the largest is 0 at any temperature."""
    temperatures = torch.tensor([s.params.temperature for s in specs], dtype=torch.float64)
    scaled = logits.double()
    scaled -= scaled.amax(dim=-1, keepdim=True)
    return scaled.div_(temperatures[:, None])


def _thresholds(
    scaled: torch.Tensor, weights: torch.Tensor, specs: Sequence[SampleSpec]
) -> torch.Tensor:
    """The lowest scaled logit that stays in each row: [rows, 1]."""
    kept = [_threshold(scaled[row], weights[row], spec) for row, spec in enumerate(specs)]
    return torch.tensor(kept, dtype=torch.float64)[:, None]


def _threshold(scaled: torch.Tensor, weights: torch.Tensor, spec: SampleSpec) -> float:
    params = spec.params
    lowest = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < len(scaled):
        lowest = max(lowest, float(scaled.topk(params.top_k).values[-1]))
    if params.top_p < 1.0:
        left = weights.where(scaled >= lowest, 0.0)
        lowest = max(lowest, _nucleus(scaled, left, params.top_p))
    return lowest


def _nucleus(scaled: torch.Tensor, weights: torch.Tensor, top_p: float) -> float:
    """The logit of the token with which the most probable ones first reach `top_p` of all weight.

    Adds up bins of logits and sorts only the bin in which that happens: sorting the vocabulary
    would take longer than a row of the model.
    """
    bins = scaled.mul(-BINS_PER_NAT).clamp_(max=BINS - 1).long()
    reached = torch.bincount(bins, weights, BINS).cumsum(dim=0)
    wanted = top_p * reached[-1]
    edge = int(torch.searchsorted(reached, wanted))
    inside = scaled[bins == edge].sort(descending=True).values
    before = reached[edge - 1] if edge > 0 else 0.0
    index = int(torch.searchsorted(before + inside.exp().cumsum(dim=0), wanted))
    return float(inside[min(index, len(inside) - 1)])

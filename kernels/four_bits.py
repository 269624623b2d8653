"""Numbers in four bits: (element + zero / 2) · scale, elements are 0 to 15."""

from collections.abc import Callable
from typing import NamedTuple

import torch

LARGEST, ZERO_LIMIT = 15, 127  # of an element, and of a zero: half steps
PARTS = (0.9, 0.8, 0.7)  # of the range, tried beside all of it
FINE = 16  # parts of a step that four more bits tell apart
E5M3_BIAS = 24

RoundScale = Callable[[torch.Tensor], torch.Tensor]


class FourBits(NamedTuple):
    """`scales` and `zeros` have one number for each range, and 1 in its place in the shape."""

    elements: torch.Tensor  # uint8
    scales: torch.Tensor  # float32
    zeros: torch.Tensor  # int8


def quantise(x: torch.Tensor, dim: int, round_scale: RoundScale) -> FourBits:
    """`x`, float32, with a range over `dim`, whose scale `round_scale` makes one that can be kept.

    Of a few ranges that leave out more and more of the ends, the one with the least squared error.
    """
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    middle, reach = (low + high) / 2, (high - low) / 2
    tries = [(low, high)] + [(middle - reach * p, middle + reach * p) for p in PARTS]
    found = [_between(x, *each, round_scale) for each in tries]
    errors = [
        ((elements + zeros / 2) * scales - x).square().sum(dim, keepdim=True)
        for elements, scales, zeros in found
    ]
    best = torch.stack(errors).argmin(dim=0, keepdim=True)

    def pick(part: int) -> torch.Tensor:
        all_tries = torch.stack([each[part] for each in found])
        return all_tries.take_along_dim(best.expand_as(all_tries[:1]), dim=0).squeeze(0)

    return FourBits(pick(0).to(torch.uint8), pick(1), pick(2).to(torch.int8))


def quantise_finely(x: torch.Tensor, round_scale: RoundScale) -> tuple[FourBits, torch.Tensor]:
    """With four more bits for each element, uint8: sixteenths of a step. Over the last dimension,
    and the whole range.
    """
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    scales = _scales(low, high, round_scale)
    inverse = _inverse(scales)
    zeros = (low * 2 * inverse).floor().clamp(-ZERO_LIMIT, ZERO_LIMIT)  # not above the lowest
    sixteenths = ((x * inverse - zeros / 2) * FINE).round()
    both = sixteenths.clamp(0, FINE * FINE - 1).to(torch.uint8)
    return FourBits(both >> 4, scales, zeros.to(torch.int8)), both & 15


def as_half(scales: torch.Tensor) -> torch.Tensor:
    return scales.half().float()


def as_e5m3(scales: torch.Tensor) -> torch.Tensor:
    return from_e5m3(to_e5m3(scales))


def to_e5m3(scales: torch.Tensor) -> torch.Tensor:
    """Positive numbers, float32, in eight bits: 5 of exponent, 3 of mantissa; rounds to nearest
    even. From 2⁻²⁴, which stands for all that is smaller, to 240.
    """
    bits = scales.contiguous().view(torch.int32)
    rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    return (rounded - ((127 - E5M3_BIAS) << 3)).clamp(0, 255).to(torch.uint8)


def from_e5m3(codes: torch.Tensor) -> torch.Tensor:
    return ((codes.int() << 20) + ((127 - E5M3_BIAS) << 23)).view(torch.float32)


def pack(elements: torch.Tensor) -> torch.Tensor:
    """The first half of the last dimension in the low bits, the second in the high ones."""
    low, high = elements.chunk(2, dim=-1)
    return low | (high << 4)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """As float32."""
    return torch.cat((packed & 15, packed >> 4), dim=-1).float()


def _between(
    x: torch.Tensor, low: torch.Tensor, high: torch.Tensor, round_scale: RoundScale
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Elements and zeros in float32, with a scale that reaches from `low` to `high`."""
    scales = _scales(low, high, round_scale)
    inverse = _inverse(scales)
    zeros = (low * 2 * inverse).round().clamp(-ZERO_LIMIT, ZERO_LIMIT)
    return (x * inverse - zeros / 2).round().clamp(0, LARGEST), scales, zeros


def _scales(low: torch.Tensor, high: torch.Tensor, round_scale: RoundScale) -> torch.Tensor:
    largest = torch.maximum(low.abs(), high.abs())
    # The second bound keeps the zero in eight bits, where all numbers are far from 0.
    return round_scale(torch.maximum((high - low) / LARGEST, largest * 2 / ZERO_LIMIT))


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    return torch.where(scales > 0, 1 / scales, 0.0)

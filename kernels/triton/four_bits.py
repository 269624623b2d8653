"""Numbers in four bits, as in `kernels.four_bits`, which is the reference."""

import triton
import triton.language as tl

from kernels.four_bits import FINE, LARGEST, PARTS, ZERO_LIMIT

_LARGEST, _ZERO_LIMIT = tl.constexpr(float(LARGEST)), tl.constexpr(float(ZERO_LIMIT))
_PARTS, _TRIES = tl.constexpr(PARTS), tl.constexpr(len(PARTS))
_FINE = tl.constexpr(float(FINE))
E5M3_OFFSET = tl.constexpr((127 - 24) << 3)  # between codes and the upper 12 bits of a float32

# Added and subtracted again, it rounds a float32 to an integer, ties to even.
TO_INTEGER = tl.constexpr(1.5 * 2**23)


@triton.jit
def best_range(
    x: tl.tensor, inside: tl.tensor, axis: tl.constexpr, of_keys: tl.constexpr
) -> tl.tensor:
    """Scale and zero, float32, for the range of float32 `x` over `axis`, which they have as 1: of a
    few that leave out more and more of the ends, the one with the least squared error.
    """
    low, high = _bounds(x, inside, axis)
    middle, reach = (low + high) * 0.5, (high - low) * 0.5
    scale = rounded_scale(low, high, of_keys)
    zero = _nearest_zero(low, scale)
    least = _missed(x, inside, axis, scale, zero)
    for i in tl.static_range(_TRIES):
        lower, upper = middle - reach * _PARTS[i], middle + reach * _PARTS[i]
        tried = rounded_scale(lower, upper, of_keys)
        tried_zero = _nearest_zero(lower, tried)
        missed = _missed(x, inside, axis, tried, tried_zero)
        scale = tl.where(missed < least, tried, scale)
        zero = tl.where(missed < least, tried_zero, zero)
        least = tl.minimum(missed, least)
    return scale, zero


@triton.jit
def whole_range(x: tl.tensor, inside: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    """As `best_range`, of values, with a zero that is not above the lowest."""
    low, high = _bounds(x, inside, axis)
    scale = rounded_scale(low, high, False)
    zero = tl.floor(low * 2.0 * inverse(scale))
    return scale, tl.minimum(tl.maximum(zero, -_ZERO_LIMIT), _ZERO_LIMIT)


@triton.jit
def elements(x: tl.tensor, scale: tl.tensor, zero: tl.tensor) -> tl.tensor:
    """0 to 15, float32."""
    return nearest(x * inverse(scale) - zero * 0.5, 0.0, _LARGEST)


@triton.jit
def sixteenths(x: tl.tensor, scale: tl.tensor, zero: tl.tensor) -> tl.tensor:
    """Of an element: 0 to 255, float32."""
    return nearest((x * inverse(scale) - zero * 0.5) * _FINE, 0.0, _FINE * _FINE - 1)


@triton.jit
def pack(x: tl.tensor, pairs: tl.constexpr) -> tl.tensor:
    """uint8 [n, 2 · pairs] of four bits each as [n, pairs]: the first half in the low bits."""
    halves = tl.reshape(x.to(tl.int32), [x.shape[0], 2, pairs])
    shift = tl.arange(0, 2)[None, :, None] * 4
    return tl.sum(halves << shift, axis=1).to(tl.uint8)


@triton.jit
def nearest(x: tl.tensor, lowest: tl.constexpr, highest: tl.constexpr) -> tl.tensor:
    """The nearest integer from `lowest` to `highest`, ties to even."""
    return tl.minimum(tl.maximum(x, lowest), highest) + TO_INTEGER - TO_INTEGER


@triton.jit
def inverse(scale: tl.tensor) -> tl.tensor:
    return tl.where(scale > 0, tl.div_rn(1.0, scale), 0.0)


@triton.jit
def to_e5m3(scale: tl.tensor) -> tl.tensor:
    bits = scale.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - E5M3_OFFSET
    return tl.minimum(tl.maximum(rounded, 0), 255).to(tl.uint8)


@triton.jit
def from_e5m3(code: tl.tensor) -> tl.tensor:
    return ((code.to(tl.int32) + E5M3_OFFSET) << 20).to(tl.float32, bitcast=True)


@triton.jit
def rounded_scale(low: tl.tensor, high: tl.tensor, of_keys: tl.constexpr) -> tl.tensor:
    """That reaches from `low` to `high`, as it is kept: in e5m3 for keys, in float16 for values."""
    largest = tl.maximum(tl.abs(low), tl.abs(high))
    scale = tl.maximum(tl.div_rn(high - low, _LARGEST), tl.div_rn(largest * 2.0, _ZERO_LIMIT))
    if of_keys:
        return from_e5m3(to_e5m3(scale))
    else:
        return scale.to(tl.float16).to(tl.float32)


@triton.jit
def _bounds(x: tl.tensor, inside: tl.tensor, axis: tl.constexpr) -> tl.tensor:
    low = tl.min(tl.where(inside, x, float("inf")), axis=axis, keep_dims=True)
    high = tl.max(tl.where(inside, x, float("-inf")), axis=axis, keep_dims=True)
    some = low <= high  # lanes that are no vector have no numbers
    return tl.where(some, low, 0.0), tl.where(some, high, 0.0)


@triton.jit
def _nearest_zero(low: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return nearest(low * 2.0 * inverse(scale), -_ZERO_LIMIT, _ZERO_LIMIT)


@triton.jit
def _missed(
    x: tl.tensor, inside: tl.tensor, axis: tl.constexpr, scale: tl.tensor, zero: tl.tensor
) -> tl.tensor:
    """The squared error of a range."""
    error = (elements(x, scale, zero) + zero * 0.5) * scale - x
    return tl.sum(tl.where(inside, error * error, 0.0), axis=axis, keep_dims=True)

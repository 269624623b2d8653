"""Keys and values as numbers: all of attention that depends on the pool's dtype.

What is the same for a key or value is left to scores, weights and means: the factors.
"""

import triton
import triton.language as tl

from kernels.triton.four_bits import from_e5m3
from kernels.triton.paged import PagedLayer, codes_of, element_of

# An e4m3 number's bits, read as float16, are the number · 2^-8: exponents are biased by 15, not 7.
E4M3_AS_HALF = tl.constexpr(256.0)


@triton.jit
def load_keys(
    paged: PagedLayer,
    block: tl.tensor,
    kv_head: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    """[tile, padded_dim] in `dtype`, without `key_factor`; zeros where a slot is not `present`."""
    if paged.kind == "int4":
        packed, inside = _load_pairs(paged, block, kv_head, slot, present)
        return _paired(
            _key_numbers(paged, packed & 15, block, kv_head, 0, inside).to(dtype),
            _key_numbers(paged, packed >> 4, block, kv_head, paged.head_dim // 2, inside).to(dtype),
        )
    else:
        return _load_numbers(paged, block, kv_head, slot, present, dtype)


@triton.jit
def load_open_keys(
    paged: PagedLayer,
    tail: tl.tensor,
    kv_head: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    """As `load_keys`, of an open block, whose keys are in a tail."""
    element, inside = element_of(paged, tl.arange(0, paged.padded_dim))
    vector = kv_head * paged.block_size + slot
    at = (
        paged.tails + tail * paged.tail_stride + vector[:, None] * paged.head_dim + element[None, :]
    )
    return tl.load(at, mask=present[:, None] & inside[None, :], other=0).to(dtype)


@triton.jit
def load_values(
    paged: PagedLayer,
    block: tl.tensor,
    kv_head: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    """[tile, padded_dim] in `dtype`, without `value_factor` and `head_factor`."""
    plane = kv_head + paged.kv_heads
    if paged.kind == "int4":
        packed, inside = _load_pairs(paged, block, plane, slot, present)
        codes = codes_of(paged, block, kv_head) + 2 * paged.head_dim
        pair = tl.arange(0, paged.padded_dim // 2)
        first = inside & (slot == 0)[:, None]
        fine = tl.load(codes[:, None] + pair[None, :], mask=first, other=0)
        zero_at = codes + paged.head_dim // 2 + slot
        zero = tl.load(zero_at, mask=present, other=0).to(tl.int8, bitcast=True)
        half_steps = zero.to(tl.float32)[:, None] * 0.5
        low, high = (packed << 4) | (fine & 15), (packed & 0xF0) | (fine >> 4)
        return _paired(
            (low.to(tl.float32) * 0.0625 + half_steps).to(dtype),
            (high.to(tl.float32) * 0.0625 + half_steps).to(dtype),
        )
    else:
        return _load_numbers(paged, block, plane, slot, present, dtype)


@triton.jit
def key_factor(
    paged: PagedLayer, block: tl.tensor, kv_head: tl.tensor, slot: tl.tensor, present: tl.tensor
) -> tl.tensor:
    """What the scores of loaded keys are multiplied with: [1, tile], or one number for all."""
    if paged.kind == "int8":
        return _load_scales(paged, block, kv_head, slot, present)
    elif paged.kind == "fp8":
        return tl.load(paged.scales + kv_head) * E4M3_AS_HALF
    else:
        return 1.0


@triton.jit
def value_factor(
    paged: PagedLayer, block: tl.tensor, kv_head: tl.tensor, slot: tl.tensor, present: tl.tensor
) -> tl.tensor:
    """What the weights of loaded values are multiplied with, as `key_factor`."""
    if paged.kind == "int8":
        return _load_scales(paged, block, kv_head + paged.kv_heads, slot, present)
    elif paged.kind == "int4":
        return _load_scales(paged, block, kv_head, slot, present)
    else:
        return 1.0


@triton.jit
def head_factor(paged: PagedLayer, kv_head: tl.tensor) -> tl.tensor:
    """What the mean of loaded values is multiplied with."""
    if paged.kind == "fp8":
        return tl.load(paged.scales + kv_head + paged.kv_heads) * E4M3_AS_HALF
    else:
        return 1.0


@triton.jit
def load_centre(paged: PagedLayer, kv_head: tl.tensor) -> tl.tensor:
    """What stored values are less by, [padded_dim] float32, of a pool with centres."""
    element, inside = element_of(paged, tl.arange(0, paged.padded_dim))
    at = paged.centres + (kv_head + paged.kv_heads) * paged.head_dim + element
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def _load_numbers(
    paged: PagedLayer,
    block: tl.tensor,
    plane: tl.tensor,
    slot: tl.tensor,
    present: tl.tensor,
    dtype: tl.constexpr,
) -> tl.tensor:
    dim = tl.arange(0, paged.padded_dim)
    inside = present[:, None] & (dim < paged.head_dim)[None, :]
    vector = block * paged.block_stride + (plane * paged.block_size + slot) * paged.head_dim
    found = tl.load(paged.elements + vector[:, None] + dim[None, :], mask=inside, other=0)
    if paged.kind == "fp8":  # by bits, since chips before sm_89 know no e4m3
        bits = found.to(tl.uint16)
        magnitude = (bits & 0x7F) << 7
        magnitude = tl.where(magnitude == 0x7F << 7, 0x7E00, magnitude)  # NaN
        halves = ((bits & 0x80) << 8) | magnitude
        return halves.to(tl.uint16).to(tl.float16, bitcast=True).to(dtype)
    else:
        return found.to(dtype)


@triton.jit
def _load_scales(
    paged: PagedLayer, block: tl.tensor, plane: tl.tensor, slot: tl.tensor, present: tl.tensor
) -> tl.tensor:
    at = paged.scales + block * paged.scale_stride + plane * paged.block_size + slot
    return tl.load(at, mask=present, other=0.0).to(tl.float32)[None, :]


@triton.jit
def _load_pairs(
    paged: PagedLayer, block: tl.tensor, plane: tl.tensor, slot: tl.tensor, present: tl.tensor
) -> tl.tensor:
    """Bytes of int4 vectors, [tile, padded_dim / 2], and where there are any."""
    pair = tl.arange(0, paged.padded_dim // 2)
    inside = present[:, None] & (pair < paged.head_dim // 2)[None, :]
    vector = (plane * paged.block_size + slot) * (paged.head_dim // 2)
    at = paged.elements + (block * paged.block_stride + vector)[:, None] + pair[None, :]
    return tl.load(at, mask=inside, other=0), inside


@triton.jit
def _key_numbers(
    paged: PagedLayer,
    elements: tl.tensor,
    block: tl.tensor,
    kv_head: tl.tensor,
    channel: tl.constexpr,
    inside: tl.tensor,
) -> tl.tensor:
    """Of int4 elements [tile, padded_dim / 2], channels from `channel` on, float32."""
    pair = tl.arange(0, paged.padded_dim // 2)
    at = codes_of(paged, block, kv_head)[:, None] + channel + pair[None, :]
    scale = from_e5m3(tl.load(at, mask=inside, other=0))
    zero = tl.load(at + paged.head_dim, mask=inside, other=0).to(tl.int8, bitcast=True)
    return (elements.to(tl.float32) + zero.to(tl.float32) * 0.5) * scale


@triton.jit
def _paired(low: tl.tensor, high: tl.tensor) -> tl.tensor:
    """[tile, n] each, as [tile, 2 · n], one behind the other."""
    both = tl.join(low, high).permute(0, 2, 1)
    return both.reshape(low.shape[0], 2 * low.shape[1])

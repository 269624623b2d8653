"""KV writes of an int4 pool, in two launches: values to their slots and keys to the tails of their
blocks; then the keys of blocks that are full, to the blocks. The reference is `Int4Planes.write`.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.four_bits import (
    best_range,
    elements,
    pack,
    sixteenths,
    to_e5m3,
    whole_range,
)
from kernels.triton.paged import PagedLayer, codes_of, element_of

VECTORS = 4  # a program's, of one token
KEY_ELEMENTS = 4096  # that a program closes at once: 32 for each thread


def write_open_kv(
    paged: PagedLayer, slots: torch.Tensor, kv: torch.Tensor, tails: torch.Tensor
) -> None:
    """Values, and keys without quantisation; see `write_kv`."""
    grid = (len(kv), triton.cdiv(paged.kv_heads.value, VECTORS))
    write_open_kernel[grid](
        kv, slots[0], slots[1], tails, paged, kv.stride(0), vectors=VECTORS, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


def close_blocks(paged: PagedLayer, slots: torch.Tensor, tails: torch.Tensor) -> None:
    """The keys of blocks whose last slot is among `slots`."""
    size, dim = paged.block_size.value, paged.padded_dim.value
    padded_size = triton.next_power_of_2(size)
    pairs = min(dim, KEY_ELEMENTS // padded_size) // 2
    grid = (slots.shape[1], paged.kv_heads.value, dim // 2 // pairs)
    close_kernel[grid](
        slots[0], slots[1], tails, paged, padded_size=padded_size, pairs=pairs, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["blocks", "slots", "tails"])
def write_open_kernel(
    kv: tl.tensor,
    blocks: tl.tensor,
    slots: tl.tensor,
    tails: tl.tensor,
    paged: PagedLayer,
    token_stride: tl.tensor,
    vectors: tl.constexpr,
) -> None:
    """A program writes key and value of `vectors` heads of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * vectors + tl.arange(0, vectors)
    lane = tl.arange(0, paged.padded_dim)
    element, exists = element_of(paged, lane)
    real = head < paged.kv_heads
    inside = real[:, None] & exists[None, :]
    place = head[:, None] * paged.head_dim + element[None, :]
    value_place = place + paged.kv_heads * paged.head_dim
    key = tl.load(kv + token * token_stride + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(kv + token * token_stride + value_place, mask=inside, other=0.0)
    value = value.to(tl.float32)
    if paged.centres is not None:
        key -= tl.load(paged.centres + place, mask=inside, other=0.0)
        value -= tl.load(paged.centres + value_place, mask=inside, other=0.0)

    block, slot = tl.load(blocks + token).to(tl.int64), tl.load(slots + token)
    tail = tl.load(tails + token).to(tl.int64)
    vector = head * paged.block_size + slot
    if tail >= 0:
        to = paged.tails + tail * paged.tail_stride
        to += vector[:, None] * paged.head_dim + element[None, :]
        tl.store(to, key.to(paged.tails.dtype.element_ty), mask=inside)

    pairs: tl.constexpr = paged.padded_dim // 2
    pair = tl.arange(0, pairs)
    some = real[:, None] & (pair < paged.head_dim // 2)[None, :]
    codes = codes_of(paged, block, head) + 2 * paged.head_dim
    if slot == 0:  # with four bits more
        scale, zero = whole_range(value, inside, 1)
        both = sixteenths(value, scale, zero).to(tl.int32)
        tl.store(codes[:, None] + pair[None, :], pack(both & 15, pairs), mask=some)
        packed = pack(both >> 4, pairs)
    else:
        scale, zero = best_range(value, inside, 1, False)
        packed = pack(elements(value, scale, zero), pairs)
    at = block * paged.block_stride
    at += (vector + paged.kv_heads * paged.block_size)[:, None] * (paged.head_dim // 2)
    tl.store(paged.elements + at + pair[None, :], packed, mask=some)
    scale_at = paged.scales + block * paged.scale_stride + vector[:, None]
    tl.store(scale_at, scale.to(tl.float16), mask=real[:, None])
    zero_at = (codes + paged.head_dim // 2 + slot)[:, None]
    tl.store(zero_at, zero.to(tl.int8).to(tl.uint8, bitcast=True), mask=real[:, None])


@triton.jit(do_not_specialize_on_alignment=["blocks", "slots", "tails"])
def close_kernel(
    blocks: tl.tensor,
    slots: tl.tensor,
    tails: tl.tensor,
    paged: PagedLayer,
    padded_size: tl.constexpr,
    pairs: tl.constexpr,
) -> None:
    """A program quantises `pairs` pairs of channels of one head, where a token filled its block."""
    token = tl.program_id(0).to(tl.int64)
    if tl.load(slots + token) != paged.block_size - 1:
        return
    block, tail = tl.load(blocks + token).to(tl.int64), tl.load(tails + token).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.arange(0, padded_size)
    filled = (slot < paged.block_size)[:, None]
    second: tl.constexpr = paged.head_dim // 2
    first = tl.program_id(2) * pairs
    lane = tl.arange(0, 2 * pairs)
    exists = (first + lane % pairs < second)[None, :]
    channel = (first + lane % pairs + lane // pairs * second)[None, :]
    vector = ((head * paged.block_size + slot) * paged.head_dim)[:, None]
    at = paged.tails + tail * paged.tail_stride + vector + channel
    x = tl.load(at, mask=filled & exists, other=0.0).to(tl.float32)

    scale, zero = best_range(x, filled & exists, 0, True)
    codes = codes_of(paged, block, head) + channel
    tl.store(codes, to_e5m3(scale), mask=exists)
    tl.store(codes + paged.head_dim, zero.to(tl.int8).to(tl.uint8, bitcast=True), mask=exists)
    pair = first + tl.arange(0, pairs)
    to = paged.elements + block * paged.block_stride
    to += ((head * paged.block_size + slot) * second)[:, None] + pair[None, :]
    tl.store(to, pack(elements(x, scale, zero), pairs), mask=filled & (pair < second)[None, :])

"""How a Triton kernel finds keys and values of one layer of a `KvPool`."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from kernels.kv_pool import KvPool

Pointer = Any  # a tensor or None; in a kernel, its first element
Known = Any  # a constant, when a kernel is compiled


class PagedLayer(NamedTuple):
    """One layer of a pool, an argument of kernels. A vector (the key or value of one token and
    head) lies at block · block_stride + ((key | value) · kv_heads + head) · block_size + slot.

    Kernels hold vectors in `padded_dim` lanes: see `element_of`.
    """

    elements: Pointer  # [blocks, 2, kv_heads, block_size, head_dim], fp8 and int4 as bytes
    block_stride: int  # elements from one block to the next
    scales: Pointer  # int8: [blocks, 2, kv_heads, block_size]; fp8: [2, kv_heads];
    # int4: [blocks, kv_heads, block_size], of values
    scale_stride: int  # int8 and int4: scales from one block to the next
    codes: Pointer  # int4: [blocks, kv_heads, codes of a head], see `KvLayout`
    tails: Pointer  # int4: [tails, kv_heads, block_size, head_dim]
    tail_stride: int
    centres: Pointer  # [2, kv_heads, head_dim]
    kind: Known  # "fp8", "int8", "int4", or "auto" where elements are the numbers
    kv_heads: Known
    block_size: Known
    head_dim: Known
    padded_dim: Known


def paged_layer(pool: KvPool, layer: int) -> PagedLayer:
    """Views of `layer` of `pool`, on its device."""
    layout, int4 = pool.layout, pool.int4
    elements = pool.elements[:, layer]
    scales, codes, tails = None, None, None
    if int4 is not None:
        scales, tails = int4.value_scales[:, layer], int4.tails[:, layer]
        codes = int4.key_scales[:, layer]  # which come first
    elif pool.scales is not None:
        scales = pool.scales[:, layer]
    elif pool.head_scales is not None:
        elements, scales = elements.view(torch.uint8), pool.head_scales[layer]
    return PagedLayer(
        elements=elements,
        block_stride=elements.stride(0),
        scales=scales,
        scale_stride=0 if scales is None else scales.stride(0),
        codes=codes,
        tails=tails,
        tail_stride=0 if tails is None else tails.stride(0),
        centres=None if pool.centres is None else pool.centres[layer],
        kind=tl.constexpr(layout.dtype if scales is not None else "auto"),
        kv_heads=tl.constexpr(layout.num_kv_heads),
        block_size=tl.constexpr(layout.block_size),
        head_dim=tl.constexpr(layout.head_dim),
        padded_dim=tl.constexpr(triton.next_power_of_2(layout.head_dim)),
    )


@triton.jit
def element_of(paged: PagedLayer, lane: tl.tensor) -> tl.tensor:
    """The element of a vector that each lane holds, and whether there is one.

    In int4 an element shares its byte with the one half a vector behind it: the first of each pair
    are in the first half of the lanes, the second in the other.
    """
    if paged.kind == "int4":
        lanes: tl.constexpr = paged.padded_dim // 2
        second: tl.constexpr = paged.head_dim // 2
        return lane % lanes + lane // lanes * second, lane % lanes < second
    else:
        return lane, lane < paged.head_dim


@triton.jit
def codes_of(paged: PagedLayer, block: tl.tensor, kv_head: tl.tensor) -> tl.tensor:
    """Where the codes of a head of an int4 block begin: see `Int4Planes`."""
    of_head: tl.constexpr = 2 * paged.head_dim + paged.head_dim // 2 + paged.block_size
    return paged.codes + block * paged.block_stride + kv_head * of_head

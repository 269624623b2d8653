"""How a Triton kernel finds keys and values of one layer of a `KvPool`."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from kernels.kv_pool import KvPool

# An e4m3 number's bits, read as float16, are the number · 2^-8: exponents are biased by 15, not 7.
E4M3_AS_HALF = tl.constexpr(256.0)


class PagedLayer(NamedTuple):
    """One layer of a pool, as views of its memory. A vector (the key or value of one token and
    head) lies at block · block_stride + ((key | value) · kv_heads + head) · block_size + slot.
    """

    elements: torch.Tensor  # [blocks, 2, kv_heads, block_size, head_dim], fp8 as bytes
    block_stride: int  # elements from one block to the next
    scales: torch.Tensor | None  # int8: [blocks, 2, kv_heads, block_size]; fp8: [2, kv_heads]
    scale_stride: int  # int8: scales from one block to the next
    kind: str  # "fp8", "int8", or "auto" where elements are the numbers


def paged_layer(pool: KvPool, layer: int) -> PagedLayer:
    """Views of `layer` of `pool`, on its device. Not of an int4 pool."""
    assert pool.layout.dtype != "int4", "int4 has no kernel in Triton"
    elements = pool.elements[:, layer]
    stride = elements.stride(0)
    if pool.head_scales is not None:
        return PagedLayer(
            elements.view(torch.uint8), stride, pool.head_scales[layer], 0, pool.layout.dtype
        )
    if pool.scales is not None:
        scales = pool.scales[:, layer]
        return PagedLayer(elements, stride, scales, scales.stride(0), pool.layout.dtype)
    return PagedLayer(elements, stride, None, 0, "auto")


@triton.jit
def as_numbers(elements: tl.tensor, dtype: tl.constexpr, kind: tl.constexpr) -> tl.tensor:
    """Loaded elements in `dtype`, without their scale; e4m3 as a 256th of what they are.

    By bits, since chips before sm_89 know no e4m3. Its NaN is read as 480.
    """
    if kind == "fp8":
        bits = elements.to(tl.uint16)
        halves = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
        return halves.to(tl.float16, bitcast=True).to(dtype)
    return elements.to(dtype)

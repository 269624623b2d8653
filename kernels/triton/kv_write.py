"""Writes new keys and values to their slots, quantised where the pool is. The reference is
`KvPool.write`.
"""

import torch
import triton
import triton.language as tl

from kernels.kv_pool import KvPool
from kernels.triton.paged import paged_layer

VECTORS = 8  # a program's, of one token

# Added and subtracted again, they round a float32 to a multiple of 1 or 2^-9, ties to even.
TO_INTEGER = tl.constexpr(1.5 * 2**23)
TO_STEP_OF_E4M3 = tl.constexpr(float(2**14))
TO_STEP_OF_E4M3_BITS = tl.constexpr((127 + 14) << 23)


def write_kv(pool: KvPool, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
    """As `KvPool.write`, to the bit for finite numbers; not to a pool with centres.

    `kv` is float32, bfloat16 or float16 [tokens, 2, kv_heads, head_dim], keys then values, each
    token's in one run; `slots` int64 [2, tokens], block and slot, each once. Tokens that only pad
    a batch name slots of the null block, which may repeat.
    """
    layout, tokens = pool.layout, kv.shape[0]
    assert pool.centres is None, "keys are not centred here"
    assert kv.shape[1:] == (2, layout.num_kv_heads, layout.head_dim), kv.shape
    assert kv[:1].is_contiguous(), "keys and values of a token are one run"
    assert slots.shape == (2, tokens), slots.shape
    assert slots.is_contiguous()
    if tokens == 0:
        return
    paged = paged_layer(pool, layer)
    grid = (tokens, triton.cdiv(2 * layout.num_kv_heads, VECTORS))
    write_kernel[grid](
        kv,
        slots[0],
        slots[1],
        paged.elements,
        paged.scales,
        kv.stride(0),
        paged.block_stride,
        paged.scale_stride,
        planes=2 * layout.num_kv_heads,
        block_size=layout.block_size,
        head_dim=layout.head_dim,
        padded_dim=triton.next_power_of_2(layout.head_dim),
        vectors=VECTORS,
        kind=paged.kind,
        num_warps=4,
        enable_fp_fusion=False,  # rounded after each operation, as the reference
    )


@triton.jit(do_not_specialize_on_alignment=["blocks", "slots"])
def write_kernel(
    kv: tl.tensor,
    blocks: tl.tensor,
    slots: tl.tensor,
    elements: tl.tensor,
    scales: tl.tensor,
    token_stride: tl.tensor,
    block_stride: tl.tensor,
    scale_stride: tl.tensor,
    planes: tl.constexpr,
    block_size: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    vectors: tl.constexpr,
    kind: tl.constexpr,
) -> None:
    """A program writes `vectors` of the `planes` (keys of all heads, then values) of one token."""
    token = tl.program_id(0).to(tl.int64)
    plane = tl.program_id(1) * vectors + tl.arange(0, vectors)
    dim = tl.arange(0, padded_dim)
    inside = (plane < planes)[:, None] & (dim < head_dim)[None, :]
    source = kv + token * token_stride + plane[:, None] * head_dim + dim[None, :]
    x = tl.load(source, mask=inside, other=0.0).to(tl.float32)

    block, slot = tl.load(blocks + token).to(tl.int64), tl.load(slots + token)
    vector = plane * block_size + slot  # of the block
    target = elements + block * block_stride + vector[:, None] * head_dim + dim[None, :]
    if kind == "int8":
        scale = tl.div_rn(tl.max(tl.abs(x), axis=1), 127.0).to(tl.float16)
        tl.store(scales + block * scale_stride + vector, scale, mask=plane < planes)
        tl.store(target, to_int8(x, scale.to(tl.float32)), mask=inside)
    elif kind == "fp8":
        scale = tl.load(scales + plane, mask=plane < planes, other=1.0)
        tl.store(target, to_e4m3(x * tl.div_rn(1.0, scale)[:, None]), mask=inside)
    else:
        tl.store(target, x.to(elements.dtype.element_ty), mask=inside)


@triton.jit
def to_int8(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """`x` [vectors, dim] / `scale` [vectors], rounded to the nearest, ties to even."""
    inverse = tl.where(scale > 0, tl.div_rn(1.0, scale), 0.0)
    clamped = tl.minimum(tl.maximum(x * inverse[:, None], -127.0), 127.0)
    return ((clamped + TO_INTEGER) - TO_INTEGER).to(tl.int8)


@triton.jit
def to_e4m3(x: tl.tensor) -> tl.tensor:
    """float32 `x` as bytes of e4m3, rounded to the nearest, ties to even; what is too large becomes
    the largest. By bits: chips before sm_89 know no e4m3.
    """
    size = tl.minimum(tl.abs(x), 448.0)
    bits = size.to(tl.int32, bitcast=True)
    # 20 of the 23 bits of the mantissa go; a carry out of it is the next exponent, as it should be.
    rounded = (bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20
    normal = rounded - ((127 - 7) << 3)
    # Below 2^-6, multiples of 2^-9.
    steps = (size + TO_STEP_OF_E4M3).to(tl.int32, bitcast=True) - TO_STEP_OF_E4M3_BITS
    code = tl.where(size < 2**-6, steps, normal)
    code = tl.where(x == x, code, 0x7F)  # noqa: PLR0124 - NaN alone is not itself
    sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)

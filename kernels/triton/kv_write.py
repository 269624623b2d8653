"""Writes new keys and values to their slots, quantised where the pool is. The reference is
`KvPool.write`, and for int4 `KvPool.write_rows`.
"""

import torch
import triton
import triton.language as tl

from kernels.kv_pool import KvPool
from kernels.triton.four_bits import inverse, nearest
from kernels.triton.kv_write_int4 import close_blocks, write_open_kv
from kernels.triton.paged import PagedLayer, paged_layer

VECTORS = 8  # a program's, of one token

# Added and subtracted again, it rounds a float32 to a multiple of 2^-9, ties to even.
TO_STEP_OF_E4M3 = tl.constexpr(float(2**14))
TO_STEP_OF_E4M3_BITS = tl.constexpr((127 + 14) << 23)


def write_kv(
    pool: KvPool,
    layer: int,
    slots: torch.Tensor,
    kv: torch.Tensor,
    tails: torch.Tensor | None = None,
) -> None:
    """As `KvPool.write`, to the bit for finite numbers; int4 up to one rounding, either way.

    `kv` is float32, bfloat16 or float16 [tokens, 2, kv_heads, head_dim], keys then values, each
    token's in one run; `slots` int64 [2, tokens], block and slot, each once. Tokens that only pad
    a batch name slots of the null block, which may repeat. An int4 pool needs `tails` as well,
    int64 [tokens]: see `AttentionRow`; those of padding are negative.
    """
    layout, tokens = pool.layout, kv.shape[0]
    assert kv.shape[1:] == (2, layout.num_kv_heads, layout.head_dim), kv.shape
    assert kv[:1].is_contiguous(), "keys and values of a token are one run"
    assert slots.shape == (2, tokens), slots.shape
    assert slots.is_contiguous()
    assert (tails is None) == (pool.int4 is None), "tokens of an int4 pool have tails"
    if tokens == 0:
        return
    paged = paged_layer(pool, layer)
    if tails is not None:
        write_open_kv(paged, slots, kv, tails)
        close_blocks(paged, slots, tails)
        return
    grid = (tokens, triton.cdiv(2 * layout.num_kv_heads, VECTORS))
    write_kernel[grid](
        kv,
        slots[0],
        slots[1],
        paged,
        kv.stride(0),
        vectors=VECTORS,
        num_warps=4,
        enable_fp_fusion=False,  # rounded after each operation, as the reference
    )


@triton.jit(do_not_specialize_on_alignment=["blocks", "slots"])
def write_kernel(
    kv: tl.tensor,
    blocks: tl.tensor,
    slots: tl.tensor,
    paged: PagedLayer,
    token_stride: tl.tensor,
    vectors: tl.constexpr,
) -> None:
    """A program writes `vectors` of one token: of the keys of all heads, then the values."""
    token = tl.program_id(0).to(tl.int64)
    plane = tl.program_id(1) * vectors + tl.arange(0, vectors)
    dim = tl.arange(0, paged.padded_dim)
    real = plane < 2 * paged.kv_heads
    inside = real[:, None] & (dim < paged.head_dim)[None, :]
    place = plane[:, None] * paged.head_dim + dim[None, :]
    x = tl.load(kv + token * token_stride + place, mask=inside, other=0.0).to(tl.float32)
    if paged.centres is not None:
        x -= tl.load(paged.centres + place, mask=inside, other=0.0)

    block, slot = tl.load(blocks + token).to(tl.int64), tl.load(slots + token)
    vector = plane * paged.block_size + slot  # of the block
    at = block * paged.block_stride + vector[:, None] * paged.head_dim + dim[None, :]
    target = paged.elements + at
    if paged.kind == "int8":
        scale = tl.div_rn(tl.max(tl.abs(x), axis=1), 127.0).to(tl.float16)
        tl.store(paged.scales + block * paged.scale_stride + vector, scale, mask=real)
        tl.store(target, to_int8(x, scale.to(tl.float32)), mask=inside)
    elif paged.kind == "fp8":
        scale = tl.load(paged.scales + plane, mask=real, other=1.0)
        tl.store(target, to_e4m3(x * tl.div_rn(1.0, scale)[:, None]), mask=inside)
    else:
        tl.store(target, x.to(paged.elements.dtype.element_ty), mask=inside)


@triton.jit
def to_int8(x: tl.tensor, scale: tl.tensor) -> tl.tensor:
    """`x` [vectors, dim] / `scale` [vectors], rounded to the nearest, ties to even."""
    return nearest(x * inverse(scale)[:, None], -127.0, 127.0).to(tl.int8)


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

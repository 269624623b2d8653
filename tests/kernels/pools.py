"""KV pools for tests."""

import torch

from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool

DTYPES = ("float32", "bfloat16", "fp8", "int8")
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def empty_pool(shape, dtype: str) -> KvPool:
    """`shape` is [blocks, layers, 2, kv_heads, block_size, head_dim]; fp8 has scales of its own."""
    blocks, layers, _, kv_heads, block_size, head_dim = shape
    layout = KvLayout(layers, kv_heads, head_dim, block_size, dtype)
    scales = torch.linspace(0.005, 0.02, layers * 2 * kv_heads).view(layers, 2, kv_heads)
    return KvPool.zeros(layout, blocks, scales if dtype == "fp8" else None)


def pool_of(elements: torch.Tensor) -> KvPool:
    """That holds these."""
    pool = empty_pool(elements.shape, NAMES[elements.dtype])
    pool.elements.copy_(elements)
    return pool


def fill(pool: KvPool, numbers: torch.Tensor) -> None:
    """Writes `numbers` [blocks, layers, 2, kv_heads, block_size, head_dim], float32, to all slots
    of all blocks.
    """
    blocks, layers, _, _, block_size, _ = numbers.shape
    slots = torch.cartesian_prod(torch.arange(blocks), torch.arange(block_size)).T
    for layer in range(layers):
        kv = numbers[:, layer].permute(0, 3, 1, 2, 4).flatten(0, 1)
        pool.write(layer, slots, kv)


def numbers_of(pool: KvPool) -> torch.Tensor:
    """What all elements stand for, float32."""
    found = pool.elements.float()
    if pool.scales is not None:
        return found * pool.scales.float().unsqueeze(-1)
    if pool.head_scales is not None:
        return found * pool.head_scales[..., None, None]
    return found

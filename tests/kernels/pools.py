"""KV pools for tests."""

from itertools import product

import torch

from kernels.attention_plan import AttentionRow
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool

DTYPES = ("float32", "bfloat16", "fp8", "int8", "int4")
NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def empty_pool(shape, dtype: str, num_tails: int = 1) -> KvPool:
    """`shape` is [blocks, layers, 2, kv_heads, block_size, head_dim]; fp8 has scales of its own,
    int4 tails in bfloat16.
    """
    blocks, layers, _, kv_heads, block_size, head_dim = shape
    layout = KvLayout(layers, kv_heads, head_dim, block_size, dtype)
    scales = torch.linspace(0.005, 0.02, layers * 2 * kv_heads).view(layers, 2, kv_heads)
    tails = tail_slots(layout, num_tails, torch.bfloat16) if dtype == "int4" else None
    return KvPool.zeros(layout, blocks, scales if dtype == "fp8" else None, tails)


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
    if pool.int4 is not None:
        for block, layer in product(range(blocks), range(layers)):
            kv = numbers[block, layer].permute(2, 0, 1, 3)
            pool.int4.write(layer, AttentionRow(0, block_size, [block], tail=0), kv)
        return
    slots = torch.cartesian_prod(torch.arange(blocks), torch.arange(block_size)).T
    for layer in range(layers):
        kv = numbers[:, layer].permute(0, 3, 1, 2, 4).flatten(0, 1)
        pool.write(layer, slots, kv)


def numbers_of(pool: KvPool) -> torch.Tensor:
    """What all elements stand for, float32."""
    if pool.int4 is not None:
        blocks = torch.arange(len(pool.raw)).unsqueeze(1)
        layers = range(pool.layout.num_layers)
        read = [pool.int4.read(layer, blocks, torch.float32) for layer in layers]
        return torch.stack(read).permute(2, 0, 1, 3, 4, 5).contiguous()
    found = pool.elements.float()
    if pool.scales is not None:
        return found * pool.scales.float().unsqueeze(-1)
    if pool.head_scales is not None:
        return found * pool.head_scales[..., None, None]
    return found

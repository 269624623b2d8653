"""How many blocks the pools of a node have, from its configuration and the shape of its model. A
node asks it when it starts, and `kvmesh plan` before anything is loaded: it needs no torch.
"""

from collections.abc import Callable
from typing import Protocol

from cache_node.config import NodeConfig
from kernels.kv_layout import KvLayout

WEIGHT_DTYPES = {"auto": "bfloat16", "bfloat16": "bfloat16", "float32": "float32"}
"""What `NodeConfig.dtype` means."""


class KvShape(Protocol):
    """What decides how large a token's keys and values are."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


def kv_layout(shape: KvShape, config: NodeConfig) -> KvLayout:
    """Of a block of the KV pool. Raises ValueError where the model's heads do not go with it."""
    own = WEIGHT_DTYPES[config.dtype]
    return KvLayout(
        num_layers=shape.num_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        block_size=config.block_size,
        dtype=own if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
    )


def kv_blocks(config: NodeConfig, layout: KvLayout, left: Callable[[], int] | None = None) -> int:
    """Blocks of the KV pool, with its null block.

    `left` tells the bytes that a GPU has for it, and is asked only where the configuration says
    neither blocks nor bytes; None on a CPU. Raises ValueError when not even one block fits.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if left is None or config.sized_in_bytes:
        return layout.num_blocks(config.kv_pool_bytes)
    return layout.num_blocks(left())


def cpu_pool_blocks(config: NodeConfig, layout: KvLayout) -> int:
    """Blocks of the CPU pool below the KV pool, with its null block."""
    return 1 + int(config.swap_space * 2**30) // layout.bytes_per_block


def fitting_max_model_len(config: NodeConfig, context: int, layout: KvLayout, blocks: int) -> int:
    """The most tokens of a request: those asked for, or the model's context.

    Raises ValueError when one sequence of them does not fit a pool of `blocks`: such a node would
    preempt that sequence for itself for ever.
    """
    longest = _max_model_len(config, context)
    usable = blocks - 1
    needed = layout.blocks_for(longest)
    if needed > usable:
        raise ValueError(
            f"max_model_len: {longest} tokens need {needed} blocks, the pool has {usable}; "
            f"lower it to {usable * layout.block_size}, or give the pool "
            f"{(needed + 1) * layout.bytes_per_block} bytes"
        )
    return longest


def _max_model_len(config: NodeConfig, context: int) -> int:
    if config.max_model_len is None:
        return context
    if config.max_model_len > context:
        raise ValueError(
            f"max_model_len: must be at most the model's context of {context} tokens, "
            f"is {config.max_model_len}"
        )
    return config.max_model_len

"""The shape of the KV pool and what it costs. Plain arithmetic without torch."""

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One block holds keys and values of `block_size` tokens in all layers, in one contiguous run:

    pool[block, layer, 0 = key | 1 = value, kv_head, slot, element]
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        elements = self.num_layers * 2 * self.num_kv_heads * self.head_dim
        return elements * DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    def pool_shape(self, num_blocks: int) -> tuple[int, int, int, int, int, int]:
        return (
            num_blocks,
            self.num_layers,
            2,
            self.num_kv_heads,
            self.block_size,
            self.head_dim,
        )

    def num_blocks(self, kv_cache_bytes: int) -> int:
        """Blocks that fit `kv_cache_bytes`, the null block among them.

        Raises ValueError when not even one block fits beside the null block.
        """
        count = kv_cache_bytes // self.bytes_per_block
        if count < 2:
            raise ValueError(
                f"kv_cache_bytes {kv_cache_bytes} holds {count} blocks of {self.bytes_per_block} "
                f"bytes; give at least {2 * self.bytes_per_block}"
            )
        return count

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens of one sequence take."""
        return -(-num_tokens // self.block_size)

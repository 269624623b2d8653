"""What a block of keys and values holds, and how many bytes it takes. Plain arithmetic without
torch.
"""

from dataclasses import dataclass

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1, "int8": 1}
SCALE_BYTES = 2  # float16
LINE = 64  # a block is whole cache lines


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One block holds keys and values of `block_size` tokens in all layers, in one contiguous run:

    elements  [layer, 0 = key | 1 = value, kv_head, slot, element]
    scales    [layer, key | value, kv_head, slot] float16, for int8
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str  # of an element

    @property
    def vectors(self) -> int:
        """Of `head_dim` elements, in a block."""
        return self.num_layers * 2 * self.num_kv_heads * self.block_size

    @property
    def element_bytes(self) -> int:
        return self.vectors * self.head_dim * ELEMENT_BYTES[self.dtype]

    @property
    def scale_bytes(self) -> int:
        return self.vectors * SCALE_BYTES if self.dtype == "int8" else 0

    @property
    def bytes_per_block(self) -> int:
        return -(-(self.element_bytes + self.scale_bytes) // LINE) * LINE

    @property
    def bytes_per_token(self) -> int:
        """Rounded up, where a block was filled up to whole cache lines."""
        return -(-self.bytes_per_block // self.block_size)

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

"""What a block of keys and values holds, and how many bytes it takes. Plain arithmetic without
torch.
"""

from dataclasses import dataclass

ELEMENT_BITS = {"float32": 32, "bfloat16": 16, "fp8": 8, "int8": 8, "int4": 4}
SCALE_BYTES = 2  # float16
LINE = 64  # a block is whole cache lines


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One block holds keys and values of `block_size` tokens in all layers, in one contiguous run:

    elements  [layer, 0 = key | 1 = value, kv_head, slot, element]; int4 packs element i of a vector
              and the one half a vector behind it into a byte, low and high
    scales    float16; int8: [layer, key | value, kv_head, slot]; int4: [layer, kv_head, slot], of
              the values
    codes     bytes of int4, for each layer and KV head: scales and zeros of the keys [element], the
              first value's fine bits [element / 2], zeros of the values [slot]; see `Int4Planes`
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str  # of an element

    def __post_init__(self) -> None:
        if self.dtype == "int4" and self.head_dim % 2:
            raise ValueError(
                f"kv_cache_dtype: int4 packs pairs, the model's head_dim is {self.head_dim}; "
                "use int8"
            )

    @property
    def vectors(self) -> int:
        """Of `head_dim` elements, in a block."""
        return self.num_layers * 2 * self.num_kv_heads * self.block_size

    @property
    def element_bytes(self) -> int:
        return self.vectors * self.head_dim * ELEMENT_BITS[self.dtype] // 8

    @property
    def num_scales(self) -> int:
        if self.dtype == "int8":
            return self.vectors
        if self.dtype == "int4":
            return self.num_layers * self.num_kv_heads * self.block_size
        return 0

    @property
    def codes_at(self) -> int:
        """Where the codes begin, in bytes."""
        return self.element_bytes + self.num_scales * SCALE_BYTES

    @property
    def num_codes(self) -> int:
        if self.dtype != "int4":
            return 0
        of_head = 2 * self.head_dim + self.head_dim // 2 + self.block_size
        return self.num_layers * self.num_kv_heads * of_head

    @property
    def bytes_per_block(self) -> int:
        return -(-(self.codes_at + self.num_codes) // LINE) * LINE

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

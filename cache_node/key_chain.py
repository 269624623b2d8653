"""The block keys of one growing sequence."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from prefix_index.keys import next_key


class BlockContent(NamedTuple):
    """What a full block holds: its key, and what the key was made of."""

    key: bytes
    parent: bytes
    tokens: bytes  # little-endian uint32


class KeyChain:
    """Contents of the full blocks of a token sequence, each hashed once, as the sequence grows."""

    def __init__(self, root: bytes, block_size: int) -> None:
        self._root = root
        self._block_size = block_size
        self._contents: list[BlockContent] = []

    def extend_to(self, tokens: Sequence[int], count: int) -> Sequence[BlockContent]:
        """The first `count` blocks' contents; `tokens` must hold that many whole blocks."""
        while len(self._contents) < count:
            start = len(self._contents) * self._block_size
            block = tokens[start : start + self._block_size]
            packed = struct.pack(f"<{self._block_size}I", *block)
            parent = self._contents[-1].key if self._contents else self._root
            self._contents.append(BlockContent(next_key(parent, packed), parent, packed))
        return self._contents[:count]

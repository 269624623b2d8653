"""The block keys of one growing sequence."""

from collections.abc import Sequence
from typing import NamedTuple

from kvmesh.packing import pack_tokens
from prefix_index.keys import TOKEN_BYTES, next_key


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

    def fork(self) -> "KeyChain":
        """A chain that starts where this one is and grows on its own."""
        chain = KeyChain(self._root, self._block_size)
        chain._contents = self._contents.copy()
        return chain

    def extend_to(self, tokens: Sequence[int], count: int) -> Sequence[BlockContent]:
        """The first `count` blocks' contents; `tokens` must hold that many whole blocks."""
        while len(self._contents) < count:
            start = len(self._contents) * self._block_size
            self._add(pack_tokens(tokens[start : start + self._block_size]))
        return self._contents[:count]

    def _add(self, packed: bytes) -> None:
        parent = self.parent(len(self._contents))
        self._contents.append(BlockContent(next_key(parent, packed), parent, packed))

    def extend_packed(self, tokens: bytes | bytearray) -> Sequence[BlockContent]:
        """The contents of all whole blocks of `tokens`, which are packed from the start."""
        size = self._block_size * TOKEN_BYTES
        for start in range(len(self._contents) * size, len(tokens) - size + 1, size):
            self._add(bytes(tokens[start : start + size]))
        return self._contents

    def parent(self, block: int) -> bytes:
        """Key before the block at place `block`, whose predecessors must have been hashed."""
        return self._contents[block - 1].key if block else self._root

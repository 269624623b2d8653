"""Prompts of a load as a simulated fleet sees them: tokens, and the keys of their blocks."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.load.prompt import Prompt as Pieces
from bench.requests import ROOT
from cache_node.key_chain import KeyChain
from kvmesh.packing import unpacked
from prefix_index.keys import TOKEN_BYTES

FIRST_TOKEN = 1000
"""Of the first piece. Smaller ones are left for outputs."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """`keys` has hashed all its whole blocks; a node goes on with a fork of it."""

    tokens: Sequence[int]
    keys: KeyChain
    block_keys: list[bytes]  # of the blocks that may be hit: the last token is always computed


class Prompts:
    """Writes prompts: pieces of one name have the same tokens, others share none.

    A piece is one number again and again: what prompts share depends on names and lengths alone.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._numbers: dict[str, int] = {}

    def write(self, pieces: Pieces) -> Prompt:
        packed = bytearray()
        for piece in pieces:
            packed += self._number(piece.name).to_bytes(TOKEN_BYTES, "little") * piece.tokens
        tokens = unpacked(packed)
        keys = KeyChain(ROOT, self._block_size)
        contents = keys.extend_packed(packed)
        hittable = (len(tokens) - 1) // self._block_size
        return Prompt(tokens, keys, [content.key for content in contents[:hittable]])

    def _number(self, name: str) -> int:
        return self._numbers.setdefault(name, FIRST_TOKEN + len(self._numbers))

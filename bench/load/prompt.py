"""Prompts made of named pieces: pieces of one name have the same tokens, whoever asks.

    Piece("system/0", 1024), Piece("user/17", 32)
    Piece("system/0", 1024), Piece("user/18", 9)

share 1,024 tokens. The shorter of two pieces of one name is the beginning of the longer.
"""

import random
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, groupby
from typing import NamedTuple

Message = dict[str, str]

# Most tokenizers have a token for each of these with a space before it.
WORDS = """
    the of and to in is that for it as was with be by on not he his but at are this have from or
    had an they which one you were all her she there would their we him been has when who will no
    more if out so up said what its about than into them can only other time new some could these
    two may first then do any like my now over such our man me even most made after also did many
""".split()  # noqa: SIM905  # short, and read as text


class Piece(NamedTuple):
    name: str
    tokens: int
    role: str = "user"  # of the message that it is part of


Prompt = tuple[Piece, ...]


class Writer:
    """Writes prompts of one seed as token ids, text or messages. Keeps those it used lately."""

    def __init__(self, seed: int, vocabulary: range) -> None:
        self._seed = seed
        self._vocabulary = vocabulary
        self._drawn = lru_cache(maxsize=2048)(self._draw)

    def token_ids(self, prompt: Prompt) -> list[int]:
        return list(chain.from_iterable(map(self._drawn, prompt)))

    def text(self, prompt: Iterable[Piece]) -> str:
        """About as many tokens as the pieces have: a word each."""
        drawn = chain.from_iterable(map(self._drawn, prompt))
        return " ".join(WORDS[token % len(WORDS)] for token in drawn)

    def messages(self, prompt: Prompt) -> list[Message]:
        """Neighbours of one role are one message."""
        return [
            {"role": role, "content": self.text(pieces)}
            for role, pieces in groupby(prompt, lambda piece: piece.role)
        ]

    def _draw(self, piece: Piece) -> tuple[int, ...]:
        draw = random.Random(f"{self._seed} {piece.name}")
        return tuple(draw.choices(self._vocabulary, k=piece.tokens))


def prompt_tokens(prompt: Prompt) -> int:
    return sum(piece.tokens for piece in prompt)

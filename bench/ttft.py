"""Cold and warm time to first token: what a cached prefix saves.

Each repetition draws a fresh random prefix and asks twice, with different tails: the first request
computes the prefix, the second one finds it in the cache. Both times are seen by the client.
"""

import random
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from bench.figures import Goal, Spread
from kvmesh.cli.ask import Answer, ask
from kvmesh.client import Client

GOAL = 0.25  # the warm time over the cold one, at most
OUTPUT_TOKENS = 4
ORDINARY = "The quick brown fox jumps over the lazy dog, while seven wizards brew strong black tea."


class Pair(NamedTuple):
    """One repetition: the same prefix asked for twice."""

    cold: Answer
    warm: Answer


@dataclass(frozen=True, slots=True)
class TtftResult:
    """All repetitions at one prefix length."""

    prefix_tokens: int
    tail_tokens: int
    pairs: tuple[Pair, ...]

    @property
    def cold(self) -> Spread:
        """Seconds to the first token of a prompt that nobody has seen."""
        return Spread.of(pair.cold.ttft for pair in self.pairs)

    @property
    def warm(self) -> Spread:
        """Seconds to the first token of a prompt whose prefix is cached."""
        return Spread.of(pair.warm.ttft for pair in self.pairs)

    @property
    def ratio(self) -> float:
        return self.warm.median / self.cold.median

    @property
    def goal(self) -> Goal:
        return Goal("warm over cold time to first token", self.ratio, GOAL)

    @property
    def cached_tokens(self) -> float:
        """Median prompt tokens that the warm requests had from the cache."""
        return median(pair.warm.cached_tokens for pair in self.pairs)

    def as_json(self) -> dict[str, float]:
        return {
            "prefix_tokens": self.prefix_tokens,
            "tail_tokens": self.tail_tokens,
            "repetitions": len(self.pairs),
            "cold_ttft_s": self.cold.median,
            "warm_ttft_s": self.warm.median,
            "ratio": self.ratio,
            "cached_tokens": self.cached_tokens,
        }


def measure_ttft(
    target: str, *, repetitions: int, prefix_tokens: int, tail_tokens: int
) -> TtftResult:
    """Measures through the router at `target`; one more repetition first warms everything up.

    Raises RequestError when a request fails.
    """
    draw = random.Random()
    with Client(target) as client:
        vocabulary = client.tokenize(ORDINARY, add_special_tokens=False)

        def repeat() -> Pair:
            prefix = draw.choices(vocabulary, k=prefix_tokens)
            tails = (draw.choices(vocabulary, k=tail_tokens) for _ in range(2))
            return Pair(*(_first_tokens(client, prefix + tail) for tail in tails))

        repeat()
        pairs = tuple(repeat() for _ in range(repetitions))
    return TtftResult(prefix_tokens, tail_tokens, pairs)


def _first_tokens(client: Client, tokens: list[int]) -> Answer:
    return ask(client, token_ids=tokens, max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True)

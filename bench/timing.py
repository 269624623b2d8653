"""When the tokens of one request came, as its client saw it."""

from collections.abc import Sequence
from typing import NamedTuple


class Timing(NamedTuple):
    """Times are of time.perf_counter, in seconds."""

    started: float
    first: float  # token
    last: float
    tokens: int  # of output
    cached: int  # of the prompt

    @property
    def ttft(self) -> float:
        return self.first - self.started

    @property
    def decode_rate(self) -> float:
        """Tokens after the first, a second."""
        return (self.tokens - 1) / (self.last - self.first)


def output_rate(timings: Sequence[Timing]) -> float:
    """Tokens of output a second of requests that ran beside each other."""
    seconds = max(t.last for t in timings) - min(t.started for t in timings)
    return sum(t.tokens for t in timings) / seconds

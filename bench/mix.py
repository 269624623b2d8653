"""A fixed mix of requests: how long prompts and outputs are."""

import math
import random
from typing import NamedTuple

PROMPT_MEAN, OUTPUT_MEAN = 240.0, 160.0  # tokens
SIGMA = 1.0  # of the logarithm; chat traces are about as uneven
SHORTEST = 4  # tokens


class Shape(NamedTuple):
    """Tokens of one request."""

    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


def draw_mix(
    count: int,
    longest: int,
    seed: int = 0,
    prompt_mean: float = PROMPT_MEAN,
    output_mean: float = OUTPUT_MEAN,
) -> list[Shape]:
    """`count` requests with log-normal prompts and outputs of these means, 400 tokens together
    unless told otherwise; each at least 4 and together at most `longest`. The same for the same
    arguments.
    """
    draw = random.Random(seed)
    prompts = _lognormal(draw, count, prompt_mean, longest // 2)
    outputs = _lognormal(draw, count, output_mean, longest // 2)
    return [Shape(*pair) for pair in zip(prompts, outputs, strict=True)]


def _lognormal(draw: random.Random, count: int, mean: float, most: int) -> list[int]:
    """Whole numbers with exactly that mean, rounding apart, although the ends are cut off."""
    raw = [draw.lognormvariate(0.0, SIGMA) for _ in range(count)]
    low, high = 0.0, 4 * mean
    while high - low > 1e-6 * mean:
        scale = (low + high) / 2
        found = math.fsum(min(most, max(SHORTEST, scale * each)) for each in raw) / count
        low, high = (scale, high) if found < mean else (low, scale)
    return [round(min(most, max(SHORTEST, low * each))) for each in raw]

"""When sessions arrive."""

import random
from collections.abc import Iterator
from itertools import count, repeat

BURST_VARIATION = 3.0  # standard deviation of bursty pauses, over their mean; Poisson's is 1


def arrival_times(kind: str, rate: float, draw: random.Random) -> Iterator[float]:
    """Seconds from the start, without end, `rate` a second in the mean. In a closed loop all are
    due at once: whoever is free takes the next.
    """
    if kind == "closed":
        yield from repeat(0.0)
    elif kind == "constant":
        yield from (number / rate for number in count())
    else:
        now = 0.0
        while True:
            now += _pause(kind, rate, draw)
            yield now


def _pause(kind: str, rate: float, draw: random.Random) -> float:
    if kind == "poisson":
        return draw.expovariate(rate)
    shape = BURST_VARIATION**-2  # of a gamma distribution: many short pauses, a few long ones
    return draw.gammavariate(shape, 1 / (rate * shape))

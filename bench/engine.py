"""The engine beside what a user would pick instead: all of them in one run, in turns."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.bandwidth import read_bandwidth
from bench.contestants import Contestant
from bench.figures import Goal, Spread
from bench.requests import random_prompt
from bench.workloads import WORKLOADS

OURS, ALONE, RIVAL = "kvmesh", "engine alone", "vllm"
WARM_UP = 2  # rounds of a few short requests
FILL_PROMPT = 1024  # tokens

# Ours over vLLM's: the least, or the most.
AT_LEAST = {
    "decode_256": 1.5,
    "decode_1024": 1.5,
    "output_8": 1.2,
    "output_32": 1.2,
    "chat_cached": 1.01,
}
AT_MOST = {"ttft_cold": 1.0, "ttft_warm": 0.7, "memory": 0.6}
BOUND_GOAL = 0.7  # of what reading the weights once a token allows

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Figures by contestant and name, and what the machine allows."""

    figures: dict[str, dict[str, Spread]]
    bandwidth: float  # bytes a second, one thread
    weight_bytes: int

    @property
    def bound(self) -> float:
        """Tokens a second of one stream, when each reads all weights once and nothing else."""
        return self.bandwidth / self.weight_bytes

    def ratio(self, name: str, contestant: str) -> float | None:
        """Ours over theirs."""
        ours, theirs = self.figures[OURS].get(name), self.figures[contestant].get(name)
        return ours.median / theirs.median if ours and theirs and theirs.median else None

    @property
    def goals(self) -> list[Goal]:
        decode = self.figures[OURS]["decode_256"].median
        bound = Goal("decode at 256 over the bound", decode / self.bound, BOUND_GOAL, at_most=False)
        if RIVAL not in self.figures:
            return [bound]
        limits = [(name, limit, False) for name, limit in AT_LEAST.items()]
        limits += [(name, limit, True) for name, limit in AT_MOST.items()]
        against = [
            Goal(f"{name} over {RIVAL}'s", ratio, limit, at_most)
            for name, limit, at_most in limits
            if (ratio := self.ratio(name, RIVAL)) is not None
        ]
        return [bound, *against]

    def as_json(self) -> dict[str, object]:
        return {
            "figures": {
                contestant: {name: spread.as_json() for name, spread in found.items()}
                for contestant, found in self.figures.items()
            },
            "read_bytes_per_second": self.bandwidth,
            "weight_bytes": self.weight_bytes,
        }


def compare(
    contestants: Sequence[Contestant], weight_bytes: int, repetitions: int, say: Say
) -> Comparison:
    """Every workload on every contestant, one after the other, and that so many times."""
    for contestant in contestants:
        _warm_up(contestant)
    found: dict[str, dict[str, list[float]]] = {each.name: {} for each in contestants}
    bandwidth = read_bandwidth()
    for repetition in range(repetitions):
        for number, workload in enumerate(WORKLOADS):
            say(f"repetition {repetition + 1} of {repetitions}, {number + 1}/{len(WORKLOADS)}")
            for contestant in contestants:
                for name, value in workload(contestant, repetition).items():
                    found[contestant.name].setdefault(name, []).append(value)
        bandwidth = max(bandwidth, read_bandwidth())
    figures = {
        contestant: {name: Spread.of(values) for name, values in each.items()}
        for contestant, each in found.items()
    }
    return Comparison(figures, bandwidth, weight_bytes)


def fill_pool(contestant: Contestant, tokens: int) -> None:
    """Writes every block of a pool of so many tokens, so that no page of it is new to a request
    that is measured.
    """
    draw = random.Random("fill")
    for _ in range(tokens // FILL_PROMPT + 1):
        contestant.complete([random_prompt(draw, FILL_PROMPT)], 1)


def _warm_up(contestant: Contestant) -> None:
    draw = random.Random("warm up")
    for _ in range(WARM_UP):
        contestant.complete([random_prompt(draw, 256) for _ in range(4)], 8)

"""A simulation against the fleet that it stands for: fitted on one load, held against another."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from bench.figures import Goal
from bench.load.config import LoadConfig
from bench.load.outcome import Outcome
from bench.load.plan import Plan
from bench.sim.default_fit import slowed
from bench.sim.node import NodeSpec
from bench.sim.simulate import SimFleet, simulate
from bench.sim.step_model import Profile

HIT_GOAL = 0.02  # points of the share of tokens hit, as a share
TTFT_GOAL = 0.3  # of what was measured
NODES, BLOCK_SIZE = 2, 16

# Another seed for each: what one has left in the caches is nothing to the other.
FITTED = LoadConfig(
    workload="shared-prefix", prefix_tokens=512, prompt_tokens=32, output_tokens=24, seed=1
)
PREDICTED = LoadConfig(
    workload="chat", prefix_tokens=256, prompt_tokens=48, output_tokens=24, think=2.0, seed=2
)


class Figures(NamedTuple):
    """Of one run: the share of prompt tokens that was hit, seconds, tokens a second."""

    hit_share: float
    ttft_p50: float
    gap_p50: float  # between two tokens, mean of a request
    output_rate: float


@dataclass(frozen=True, slots=True)
class Real:
    """What a load made of the real fleet."""

    load: LoadConfig
    plan: Plan
    outcomes: Sequence[Outcome]
    seconds: float


@dataclass(frozen=True, slots=True)
class Compared:
    load: str
    measured: Figures
    simulated: Figures

    @property
    def hit_error(self) -> float:
        return abs(self.simulated.hit_share - self.measured.hit_share)

    @property
    def ttft_error(self) -> float:
        return abs(self.simulated.ttft_p50 / self.measured.ttft_p50 - 1)

    def as_json(self) -> dict[str, object]:
        return {
            "load": self.load,
            "measured": self.measured._asdict(),
            "simulated": self.simulated._asdict(),
        }


@dataclass(frozen=True, slots=True)
class Validation:
    """`slowdown`: how many times as long as in the profile steps took while the fleet ran."""

    slowdown: float
    path: float
    fitted: Compared
    predicted: Compared

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("error of the hit share, of 1", self.predicted.hit_error, HIT_GOAL),
            Goal("error of the TTFT p50, of the measured", self.predicted.ttft_error, TTFT_GOAL),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "slowdown": self.slowdown,
            "path_seconds": self.path,
            "fitted": self.fitted.as_json(),
            "predicted": self.predicted.as_json(),
        }


def loads(requests: int, rate: float) -> list[LoadConfig]:
    """What is fitted to, and what is predicted."""
    return [replace(each, requests=requests, rate=rate) for each in (FITTED, PREDICTED)]


def validate(fitted: Real, predicted: Real, num_blocks: int, profile: Profile) -> Validation:
    """Fits slowdown and path to the first run, and predicts the second one with them."""
    slowdown, path = _calibrate(fitted, num_blocks, profile)
    settled = slowed(profile, slowdown, path)
    return Validation(
        slowdown,
        path,
        *(
            Compared(
                real.load.name,
                figures_of(real.outcomes, real.seconds),
                _simulated(real, num_blocks, settled),
            )
            for real in (fitted, predicted)
        ),
    )


def figures_of(outcomes: Sequence[Outcome], seconds: float) -> Figures:
    """Raises ValueError unless all were answered: then there is nothing to compare."""
    failed = [each for each in outcomes if not each.ok]
    if failed or not outcomes:
        said = failed[0].message if failed else "there were none"
        raise ValueError(f"{len(failed)} of {len(outcomes)} requests were not answered: {said}")
    prompt = sum(each.prompt_tokens or 0 for each in outcomes)
    return Figures(
        sum(each.cached_tokens for each in outcomes) / prompt,
        median(each.ttft for each in outcomes if each.ttft is not None),
        median(each.mean_gap for each in outcomes if each.mean_gap is not None),
        sum(each.output_tokens for each in outcomes) / seconds,
    )


def _calibrate(real: Real, num_blocks: int, profile: Profile) -> tuple[float, float]:
    """Slowdown from the gaps between tokens, then the path from what is left of the TTFT. Twice:
    how many run beside each other depends on the speed.
    """
    measured = figures_of(real.outcomes, real.seconds)
    slowdown, path = 1.0, profile.path
    for _ in range(2):
        found = _simulated(real, num_blocks, slowed(profile, slowdown, path))
        slowdown *= measured.gap_p50 / found.gap_p50
        found = _simulated(real, num_blocks, slowed(profile, slowdown, path))
        path = max(0.0, path + measured.ttft_p50 - found.ttft_p50)
    return slowdown, path


def _simulated(real: Real, num_blocks: int, profile: Profile) -> Figures:
    fleet = SimFleet(
        nodes=NODES,
        spec=NodeSpec(num_blocks=num_blocks, block_size=BLOCK_SIZE),
        profile=profile,
        policy=real.load.policy,
        seed=real.load.seed,
    )
    result = simulate(real.plan, real.load, fleet)
    return figures_of(result.outcomes, result.seconds)

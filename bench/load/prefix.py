"""What prefix caching and prefix-aware routing are worth: the same loads on fleets that differ in
that alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench.figures import Goal
from bench.load.config import LoadConfig

TTFT_GOAL = 0.3  # of the TTFT without prefix caching, at most
THROUGHPUT_GOAL = 1.5  # of the requests a second without it, at least

Summary = Mapping[str, Any]
Loads = Mapping[str, LoadConfig]
Measure = Callable[[Loads], Mapping[str, Summary]]
"""Runs loads one after the other on one fresh fleet, that of the first; summaries by name."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything: the figures differ little, their noise does."""

    light: int  # requests, one every two seconds
    heavy: int  # requests, eight at once
    trace_share: float  # of the trace's conversations, in TRACE_SECONDS


FULL, QUICK = Size(30, 40, 0.02), Size(8, 16, 0.006)
TRACE_SPEED = 45.0  # an hour in 80 s
TRACE_SCALE = 1 / 64  # a block of the trace is half a KV block, prompts have 200 tokens


@dataclass(frozen=True, slots=True)
class Pair:
    """Summaries by the name of the load, of two fleets."""

    ours: Mapping[str, Summary]
    other: Mapping[str, Summary]

    def ratio(self, load: str, *path: str) -> float:
        """Ours over the other's; infinite where the other has none."""
        ours, other = (_figure(each[load], path) for each in (self.ours, self.other))
        return ours / other if other else float("inf")


def compare_caching(measure: Measure, size: Size) -> tuple[Pair, list[Goal]]:
    """The shared-prefix workload with prefix caching on and off."""
    base = LoadConfig(prefixes=1, output_tokens=8, slo_ttft=1.0)
    light = replace(base, arrivals="constant", rate=0.5, requests=size.light)
    heavy = replace(base, arrivals="closed", concurrency=8, requests=size.heavy, seed=1)
    both = [
        {
            "light": replace(light, enable_prefix_caching=on),
            "heavy": replace(heavy, enable_prefix_caching=on),
        }
        for on in (True, False)
    ]
    pair = Pair(*map(measure, both))
    return pair, [
        Goal("TTFT p50 with prefix caching over without", _ttft(pair, "light"), TTFT_GOAL),
        Goal(
            "requests a second with prefix caching over without",
            pair.ratio("heavy", "throughput", "requests_per_s"),
            THROUGHPUT_GOAL,
            at_most=False,
        ),
    ]


def compare_routing(measure: Measure, size: Size, trace: Path) -> tuple[Pair, list[Goal]]:
    """A share of a trace under prefix-aware routing and under round-robin. Raises ValueError for a
    trace that cannot be read.
    """
    base = LoadConfig(
        trace=trace,
        trace_share=size.trace_share,
        speed=TRACE_SPEED,
        length_scale=TRACE_SCALE,
        requests=1 << 30,  # all
    )
    both = [{"trace": replace(base, policy=policy)} for policy in ("prefix-aware", "round-robin")]
    pair = Pair(*map(measure, both))
    return pair, [
        Goal("TTFT p50, prefix-aware over round-robin", _ttft(pair, "trace"), 1.0),
        Goal(
            "hit tokens, prefix-aware over round-robin",
            pair.ratio("trace", "cache", "cached_tokens"),
            1.0,
            at_most=False,
        ),
    ]


def _ttft(pair: Pair, load: str) -> float:
    """Who answers nothing is not fast."""
    return pair.ratio(load, "latency", "ttft", "p50") or float("inf")


def _figure(summary: Summary, path: Sequence[str]) -> float:
    """0 where there is none: nothing was answered."""
    found: Any = summary
    for name in path:
        found = found and found[name]
    return float(found or 0.0)

"""What happened when: counts in steps of time, and shares below a latency."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.figures import quantile
from bench.load.fleet_watch import NodeSample
from bench.load.outcome import Outcome

MOST_STEPS = 150
CDF_POINTS = 200


def cumulative(ranked: Sequence[float]) -> list[float]:
    """The values below which 0, 1/200, ... all of `ranked` are."""
    if not ranked:
        return []
    return [quantile(ranked, point / CDF_POINTS) for point in range(CDF_POINTS)] + [ranked[-1]]


def time_series(outcomes: Iterable[Outcome], seconds: float) -> dict[str, Any]:
    """Events a step of `step` seconds; `in_flight` at the end of each step."""
    step = max(1.0, seconds / MOST_STEPS)
    count = max(1, round(seconds / step))  # the last one takes what is over
    made: dict[str, list[float]] = {
        name: [0] * count for name in ("sent", "finished", "failed", "output_tokens")
    }

    def add(name: str, when: float | None, amount: float = 1) -> None:
        if when is not None:
            made[name][min(count - 1, int(max(0.0, when) / step))] += amount

    for each in outcomes:
        add("sent", each.sent)
        if each.ok or each.failed:
            add("finished" if each.ok else "failed", each.ended)
        _add_tokens(each, add)
    in_flight, running = [], 0.0
    for sent, finished, failed in zip(made["sent"], made["finished"], made["failed"], strict=True):
        running += sent - finished - failed
        in_flight.append(running)
    return {"step": step, **made, "in_flight": in_flight}


def _add_tokens(outcome: Outcome, add: Callable[[str, float, float], None]) -> None:
    """When they came, as far as their gaps tell."""
    if outcome.first is None:
        return
    when = outcome.first
    add("output_tokens", when, max(1, outcome.output_tokens - len(outcome.gaps)))
    for gap in outcome.gaps:
        when += gap
        add("output_tokens", when, 1)


def fleet_series(samples: Sequence[NodeSample]) -> dict[str, Any] | None:
    """By node: KV usage and, between two looks, the share of prompt tokens that were hits."""
    if not samples:
        return None
    by_node: defaultdict[str, list[NodeSample]] = defaultdict(list)
    for sample in samples:
        by_node[sample.node].append(sample)
    return {
        "nodes": {
            name: {
                "time": [each.time for each in found],
                "held": [each.held for each in found],
                "cached": [each.cached for each in found],
            }
            for name, found in sorted(by_node.items())
        },
        "hit_rate": _hit_rate(by_node),
    }


def _hit_rate(by_node: dict[str, list[NodeSample]]) -> dict[str, list[float]]:
    """Of all nodes since the start of the load; none before the first prompt."""
    looks = min(map(len, by_node.values()))
    times, rates = [], []
    for place in range(1, looks):
        pairs = [(found[0], found[place]) for found in by_node.values()]
        queried = sum(now.queried_tokens - then.queried_tokens for then, now in pairs)
        if queried > 0:
            hit = sum(now.hit_tokens - then.hit_tokens for then, now in pairs)
            times.append(pairs[0][1].time)
            rates.append(hit / queried)
    return {"time": times, "rate": rates}

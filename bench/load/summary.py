"""The figures of a load, as JSON: what the terminal, the page and comparisons are made from."""

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Any

from bench.figures import Goal, quantile
from bench.load.outcome import INTERRUPTED, UNSENT, Outcome
from bench.load.run import Run
from bench.load.series import cumulative, fleet_series, time_series
from bench.machine import describe_machine

SCHEMA = 1
LAG_OF_TTFT = 0.1  # what the generator may add to a latency
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

Summary = dict[str, Any]


def summarise(run: Run) -> Summary:
    """Times in seconds, lengths in tokens."""
    outcomes = run.generator.outcomes
    answered = [each for each in outcomes if each.ok]
    latencies = _latencies(answered)
    goals = generator_goals(run, latencies)
    return {
        "schema": SCHEMA,
        "name": run.config.name,
        "loop": "closed" if run.config.closed else "open",
        "config": run.config.as_json(),
        "command": " ".join(["kvmesh", *sys.argv[1:]]),
        "machine": describe_machine(),
        "started": run.started.isoformat(timespec="seconds"),
        "seconds": run.seconds,
        "interrupted": run.interrupted,
        "invalid": [_reason(goal) for goal in goals if not goal.met],
        "requests": _requests(outcomes, len(run.generator.plan.turns)),
        "errors": _errors(outcomes),
        "latency": {name: _spread(values) for name, values in latencies.items()},
        "throughput": _throughput(answered, run.seconds),
        "goodput": _goodput(run, outcomes, answered),
        "cache": _cache(answered),
        "nodes": _nodes(answered),
        "generator": _generator(run, goals),
        "cdf": {name: cumulative(values) for name, values in latencies.items()},
        "series": time_series(outcomes, run.seconds),
        "fleet": fleet_series(run.fleet.samples),
        "fleet_missing": run.fleet.missing,
    }


def generator_goals(run: Run, latencies: dict[str, list[float]]) -> list[Goal]:
    """What must hold for the figures to be the server's: the generator keeps up. A lag is small
    below `max_lag`, or beside the TTFT.
    """
    lags = _lags(run.generator.outcomes)
    loop = sorted(run.vitals.lags)
    config, ttft = run.config, latencies["ttft"]
    most = max(config.max_lag, LAG_OF_TTFT * quantile(ttft, 0.99) if ttft else 0.0)
    goals = [Goal("generator's CPU, share of a core", run.cpu, config.max_cpu)]
    if lags and not config.closed:
        goals.append(Goal("send lag p99, s", quantile(lags, 0.99), most))
    if loop:
        goals.append(Goal("event loop lag p99, s", quantile(loop, 0.99), most))
    if lags and ttft and not config.closed:
        ratio = fmean(lags) / quantile(ttft, 0.5)
        goals.append(Goal("mean send lag over the median TTFT", ratio, LAG_OF_TTFT))
    return goals


def _reason(goal: Goal) -> str:
    return f"{goal.name} {goal.value:.3g}, above {goal.limit:g}"


def _latencies(answered: Iterable[Outcome]) -> dict[str, list[float]]:
    """Sorted."""
    answered = list(answered)
    return {
        "ttft": _ranked(each.ttft for each in answered),
        "itl": sorted(chain.from_iterable(each.gaps for each in answered)),
        "e2e": _ranked(each.e2e for each in answered),
    }


def _ranked(values: Iterable[float | None]) -> list[float]:
    return sorted(value for value in values if value is not None)


def _lags(outcomes: Iterable[Outcome]) -> list[float]:
    return _ranked(each.lag for each in outcomes)


def _spread(ranked: Sequence[float]) -> dict[str, float] | None:
    """None without values."""
    if not ranked:
        return None
    shares = {name: quantile(ranked, share) for name, share in SHARES.items()}
    return {**shares, "mean": fmean(ranked), "max": ranked[-1], "count": len(ranked)}


def _requests(outcomes: Sequence[Outcome], planned: int) -> dict[str, int]:
    states = Counter(each.status for each in outcomes)
    return {
        "planned": planned,
        "sent": len(outcomes) - states[UNSENT],
        "ok": sum(each.ok for each in outcomes),
        "failed": sum(each.failed for each in outcomes),
        "interrupted": states[INTERRUPTED],
        "unsent": states[UNSENT],
        "short": sum(each.ok and each.output_tokens < each.turn.output for each in outcomes),
    }


def _errors(outcomes: Iterable[Outcome]) -> dict[str, dict[str, Any]]:
    """By status: how many, and what one of them said."""
    found: dict[str, dict[str, Any]] = {}
    for each in outcomes:
        if each.failed:
            entry = found.setdefault(each.status, {"count": 0, "example": each.message})
            entry["count"] += 1
    return found


def _throughput(answered: Sequence[Outcome], seconds: float) -> dict[str, float]:
    span = max(seconds, 1e-9)
    return {
        "requests_per_s": len(answered) / span,
        "output_tokens_per_s": sum(each.output_tokens for each in answered) / span,
        "prompt_tokens_per_s": sum(_prompt_tokens(each) for each in answered) / span,
    }


def _goodput(
    run: Run, outcomes: Iterable[Outcome], answered: Iterable[Outcome]
) -> dict[str, object]:
    """Of what has ended: a failed request is not good, one that was cut off does not count."""
    config = run.config
    slo = Slo(config.slo_ttft, config.slo_itl, config.slo_e2e)
    good = sum(map(slo.met_by, answered))
    ended = sum(each.ok or each.failed for each in outcomes)
    return {
        "slo": {"ttft": slo.ttft, "itl": slo.itl, "e2e": slo.e2e},
        "requests_per_s": good / max(run.seconds, 1e-9),
        "share": good / ended if ended else None,
    }


@dataclass(frozen=True, slots=True)
class Slo:
    """What a user is content with, in seconds; `itl` is the mean of one request's tokens."""

    ttft: float
    itl: float
    e2e: float | None

    def met_by(self, outcome: Outcome) -> bool:
        pairs = (
            (outcome.ttft, self.ttft),
            (outcome.mean_gap, self.itl),
            (outcome.e2e, self.e2e),
        )
        return all(value is None or limit is None or value <= limit for value, limit in pairs)


def _cache(answered: Sequence[Outcome]) -> dict[str, float | None]:
    prompt = sum(map(_prompt_tokens, answered))
    cached = sum(each.cached_tokens for each in answered)
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "share": cached / prompt if prompt else None,
    }


def _nodes(answered: Iterable[Outcome]) -> dict[str, Any] | None:
    """What each node answered; None where the server does not say. `spread`: prompt tokens that
    were computed, of the busiest node over the mean.
    """
    by_name: defaultdict[str, list[Outcome]] = defaultdict(list)
    for each in answered:
        if each.node:
            by_name[each.node].append(each)
    if not by_name:
        return None
    nodes = {name: _node(by_name[name]) for name in sorted(by_name)}
    computed = [node["prompt_tokens"] - node["cached_tokens"] for node in nodes.values()]
    mean = fmean(computed)
    return {"by_name": nodes, "spread": max(computed) / mean if mean else None}


def _node(outcomes: Sequence[Outcome]) -> dict[str, int]:
    return {
        "requests": len(outcomes),
        "prompt_tokens": sum(map(_prompt_tokens, outcomes)),
        "cached_tokens": sum(each.cached_tokens for each in outcomes),
        "output_tokens": sum(each.output_tokens for each in outcomes),
    }


def _generator(run: Run, goals: Iterable[Goal]) -> dict[str, Any]:
    return {
        "cpu": run.cpu,
        "highest_cpu": run.vitals.highest_cpu,
        "send_lag": _spread(_lags(run.generator.outcomes)),
        "loop_lag": _spread(sorted(run.vitals.lags)),
        "goals": [goal.as_json() for goal in goals],
    }


def _prompt_tokens(outcome: Outcome) -> int:
    """As the server counts them, if it does."""
    return outcome.prompt_tokens or outcome.turn.prompt_tokens

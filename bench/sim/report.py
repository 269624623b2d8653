"""The figures of a simulation."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from bench.figures import quantile
from bench.load.outcome import Outcome
from bench.load.summary import Slo
from bench.sim.simulate import Simulated

SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
DIGITS = 6  # of seconds and shares

APPROXIMATED = (
    "step times are a sum of the profile's constants, no token is computed",
    "steps that only add a token to each request are booked together, and reported as one",
    "one router, whose own work takes no time but the profile's path",
    "that router may have 64 requests a node in flight, if its default is less",
    "prompts of any length: no model's context bounds them",
    "states come without streams: no heartbeat, no silence; a crash is seen at once",
    "no deadlines and timeouts but the queue's; a stream that lost its node waits for another",
    "no swap space: what is preempted is computed again",
    "copies of the trace share nothing with each other",
)

Figures = dict[str, Any]


def figures_of(result: Simulated, slo: Slo) -> Figures:
    """Times in seconds, lengths in tokens. `imbalance`: prompt tokens that were computed, of the
    busiest node over the mean.
    """
    answered = [each for each in result.outcomes if each.ok]
    prompt = sum(each.prompt_tokens or 0 for each in answered)
    cached = sum(each.cached_tokens for each in answered)
    mean = fmean(result.computed)
    good = sum(map(slo.met_by, answered))
    return {
        "policy": result.policy,
        "requests": len(result.outcomes),
        "answered": len(answered),
        "failed": dict(sorted(Counter(e.status for e in result.outcomes if e.failed).items())),
        "seconds": round(result.seconds, DIGITS),
        "prompt_tokens": prompt,
        "hit_tokens": cached,
        "hit_share": round(cached / prompt, DIGITS) if prompt else None,
        "ttft_seconds": _spread([e.ttft for e in answered if e.ttft is not None]),
        "itl_seconds": _spread([e.mean_gap for e in answered if e.mean_gap is not None]),
        "output_tokens_per_s": round(_output(answered) / result.seconds, DIGITS),
        "goodput": {
            "requests_per_s": round(good / result.seconds, DIGITS),
            "share": round(good / len(result.outcomes), DIGITS),
        },
        "preemptions": result.preemptions,
        "computed_tokens": result.computed,
        "imbalance": round(max(result.computed) / mean, DIGITS) if mean else None,
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    if not values:
        return None
    ranked = sorted(values)
    shares = {name: round(quantile(ranked, share), DIGITS) for name, share in SHARES.items()}
    return {"mean": round(fmean(ranked), DIGITS), **shares}


def _output(answered: Sequence[Outcome]) -> int:
    return sum(each.output_tokens for each in answered)

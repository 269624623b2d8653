"""A profile of this machine, with the default model."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import describe_machine
from bench.sim.fit import fastest, fit_error, fit_steps
from bench.sim.measure import measure_steps
from bench.sim.step_model import Profile
from cache_node.config import DEFAULT_MODEL
from cache_node.model.source import find_model

NODES = 2  # at once, as `kvmesh serve` has them
ROUNDS = 2
PATH = 0.004
"""Seconds that router, gRPC and client add to a request. See docs/benchmarks/sim.md."""


def fit_default_model() -> Profile:
    """Takes some minutes. Raises ValueError when what was measured is too little."""
    return fit_profile(find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None))


def fit_profile(directory: Path) -> Profile:
    samples = fastest(measure_steps(directory, NODES, ROUNDS))
    model = fit_steps(samples)
    about = {
        "measured": f"CPU time of {len(samples)} kinds of steps, least of {ROUNDS * NODES}",
        "error": f"{fit_error(model, samples):.1%} in the median",
        "model": DEFAULT_MODEL,
        "nodes": f"{NODES} at once, one compute thread each",
        "date": datetime.now(UTC).date().isoformat(),
        **describe_machine(),
    }
    return Profile(model, PATH, about)


def slowed(profile: Profile, factor: float, path: float) -> Profile:
    """The same machine while something else runs on it: every step takes `factor` times as long."""
    model = profile.model
    return replace(
        profile,
        path=path,
        model=replace(
            model,
            step=model.step * factor,
            prefill_token=model.prefill_token * factor,
            prefill_read=model.prefill_read * factor,
            decode_row=model.decode_row * factor,
            decode_read=model.decode_read * factor,
        ),
    )

"""A simulation as it was asked for: all its policies on the same requests."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from bench.load.config import LoadConfig
from bench.load.summary import Slo
from bench.sim.config import SimConfig
from bench.sim.node import NodeSpec
from bench.sim.report import APPROXIMATED, Figures, figures_of
from bench.sim.scaled_trace import half_busy, scale_to, scaled_plan
from bench.sim.simulate import SimFleet, simulate
from bench.sim.step_model import Profile, profile_named
from bench.trace import read_any_trace

Progress = Callable[[str], None]


def run_simulation(config: SimConfig, progress: Progress) -> dict[str, Any]:
    """The report: the same bytes for the same config, trace and profile. `progress` is called with
    the policy that begins. Raises OSError and ValueError for files that cannot be used.
    """
    assert config.trace is not None
    trace = read_any_trace(config.trace)
    if len(trace) < 2:
        raise ValueError(f"{config.trace}: must hold at least 2 requests, holds {len(trace)}")
    profile = Profile.read(profile_named(config.profile))
    rate = config.rate or half_busy(trace, config.nodes, profile.model, config.length_scale)
    plan = scaled_plan(trace, config.requests, rate, config.length_scale, config.seed)
    slo = Slo(config.slo_ttft, config.slo_itl, None)
    policies: list[Figures] = []
    for policy in config.policy:
        progress(policy)
        fleet = fleet_of(config, profile, policy)
        policies.append(figures_of(simulate(plan, LoadConfig(), fleet), slo))
    return {
        "config": _described(config),
        "requests_per_s": round(rate, 6),
        "trace_copies": scale_to(trace, rate).copies,
        "profile": profile.as_json(),
        "policies": policies,
        "approximated": list(APPROXIMATED),
    }


def fleet_of(config: SimConfig, profile: Profile, policy: str) -> SimFleet:
    spec = NodeSpec(
        num_blocks=config.blocks,
        block_size=config.block_size,
        scheduling_policy=config.scheduling_policy,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    return SimFleet(
        nodes=config.nodes,
        spec=spec,
        profile=profile,
        policy=policy,
        seed=config.seed,
        index_delay=config.index_delay,
        failures=tuple(config.failures),
        max_queue=config.max_queue,
        queue_timeout=config.queue_timeout,
    )


def _described(config: SimConfig) -> dict[str, Any]:
    """Without what is not simulated."""
    assert config.trace is not None
    fields = asdict(config)
    fields["trace"] = config.trace.name
    return {name: value for name, value in fields.items() if name not in ("fit", "as_json")}

"""Loads on a fleet that is started for them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bench.load.config import LoadConfig

if TYPE_CHECKING:
    from bench.load.plan import Plan
    from bench.load.run import Run
    from kvmesh.cli.fleet import Fleet
    from kvmesh.cli.serve_config import ServeConfig


def run_on_own_fleet(loads: Sequence[tuple[LoadConfig, "Plan"]]) -> "list[Run]":
    """One after the other, on the fleet that the first asks for. An interrupted one is the last.

    Raises ConnectionError and ValueError as `run_load` does.
    """
    from bench.load.run import run_load
    from kvmesh.cli.bench.own_fleet import beside_own_fleet
    from kvmesh.cli.load_progress import LoadProgress

    async def measure(served: "ServeConfig", _fleet: "Fleet") -> "list[Run]":
        runs: list[Run] = []
        for config, plan in loads:
            target = served.http_url if config.over_http else served.grpc_target
            with LoadProgress(config.name) as progress:
                runs.append(await run_load(config, plan, target, served.grpc_target, progress))
            if runs[-1].interrupted:
                break
        return runs

    return beside_own_fleet(measure, _serve_config(loads[0][0]))


def _serve_config(config: LoadConfig) -> "ServeConfig":
    from kvmesh.cli.serve_config import ServeConfig

    defaults = ServeConfig()
    return ServeConfig(
        nodes=config.nodes,
        policy=config.policy,
        enable_prefix_caching=config.enable_prefix_caching,
        model=config.model or defaults.model,
    )

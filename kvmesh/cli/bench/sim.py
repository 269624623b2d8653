"""`kvmesh bench sim`: what simulations of a fleet are worth."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail
from kvmesh.cli.hushed import hushed

if TYPE_CHECKING:
    from bench.load.config import LoadConfig
    from bench.sim.validate import Compared, Real, Validation
    from kvmesh.cli.fleet import Fleet
    from kvmesh.cli.serve_config import ServeConfig


def sim(
    requests: Annotated[int, typer.Option(min=8, help="Of each of the two loads.")] = 60,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second.")] = 0.8,
    profile: Annotated[str, typer.Option(help="Step times, see kvmesh sim --profile.")] = "cpu",
    as_json: Json = False,
) -> None:
    """A simulation, fitted to one load on a real fleet, beside another load on it.

    Examples:

        kvmesh bench sim
        kvmesh bench sim --requests 200 --rate 0.5 --json

    Two nodes serve shared system prompts, then chats. From the first load come two numbers: how
    many times as long as in the profile steps take while nodes, router and client share the
    machine, and what the way through them adds. The second load is then predicted with these.
    """
    from bench.sim.step_model import Profile, profile_named
    from bench.sim.validate import loads, validate
    from kvmesh.cli.bench.own_fleet import beside_own_fleet

    planned = loads(requests, rate)

    async def measure(served: "ServeConfig", _fleet: "Fleet") -> "tuple[int, list[Real]]":
        return await _measure(served, planned)

    try:
        known = Profile.read(profile_named(profile))
        num_blocks, (fitted, predicted) = beside_own_fleet(measure)
        with hushed():
            validation = validate(fitted, predicted, num_blocks, known)
    except (OSError, ValueError) as error:
        fail(str(error))
    tell(_report(validation, requests, rate), as_json=as_json)


async def _measure(
    served: "ServeConfig", planned: "Sequence[LoadConfig]"
) -> "tuple[int, list[Real]]":
    """Blocks of a node, and what became of the loads, one after the other."""
    from bench.load.plan import make_plan
    from bench.load.run import run_load
    from bench.sim.validate import Real
    from kvmesh.cli.load_progress import LoadProgress

    reals: list[Real] = []
    for config in planned:
        plan = make_plan(config)
        target = served.grpc_target
        with LoadProgress(config.name) as progress:
            run = await run_load(config, plan, target, target, progress)
        reals.append(Real(config, plan, run.generator.outcomes, run.seconds))
    return await _num_blocks(served.grpc_target), reals


async def _num_blocks(target: str) -> int:
    import grpc

    from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc

    async with grpc.aio.insecure_channel(target) as channel:
        stub: fleet_pb2_grpc.FleetAsyncStub = fleet_pb2_grpc.FleetStub(channel)
        reply = await stub.ListNodes(fleet_pb2.ListNodesRequest())
    return min(node.num_blocks for node in reply.nodes)


def _report(validation: "Validation", requests: int, rate: float) -> Report:
    rows = [
        row
        for what, compared in (
            ("fitted", validation.fitted),
            ("predicted", validation.predicted),
        )
        for row in _rows(what, compared)
    ]
    slowdown, path = f"{validation.slowdown:.2f}", f"{validation.path * 1e3:.1f}"
    return Report(
        title=f"{requests} requests, {rate:g} a second, on 2 nodes of this machine",
        columns=("", "measured", "simulated"),
        rows=rows,
        data=validation.as_json(),
        goals=validation.goals,
        notes=[f"Fitted: steps take {slowdown} times what the profile says, the way {path} ms."],
    )


def _rows(what: str, compared: "Compared") -> list[list[str]]:
    real, simulated = compared.measured, compared.simulated
    return [
        [f"{what}: {compared.load}", "", ""],
        ["  tokens hit", f"{real.hit_share:.1%}", f"{simulated.hit_share:.1%}"],
        ["  TTFT p50, ms", f"{real.ttft_p50 * 1e3:.0f}", f"{simulated.ttft_p50 * 1e3:.0f}"],
        ["  between tokens p50, ms", f"{real.gap_p50 * 1e3:.0f}", f"{simulated.gap_p50 * 1e3:.0f}"],
        ["  output tokens/s", f"{real.output_rate:.1f}", f"{simulated.output_rate:.1f}"],
    ]

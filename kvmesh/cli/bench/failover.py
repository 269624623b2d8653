"""`kvmesh bench failover`: mixed load on a fleet whose nodes fail one after the other."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.failover import Soak


def failover(
    seconds: Annotated[float, typer.Option(min=5, help="Of load.")] = 1200.0,
    period: Annotated[float, typer.Option(min=1, help="Seconds between two faults.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Of requests and faults.")] = 0,
    as_json: Json = False,
) -> None:
    """Mixed load on three nodes; every ten seconds one is killed, frozen, cut off, stopped or
    drained.

    Examples:

        kvmesh bench failover
        kvmesh bench failover --seconds 60 --period 5

    A tiny random model. Each answer is compared, token by token, with that of the same request and
    seed before the first fault. No request may end without a clear status, and at the end nothing
    may be held on router and nodes.
    """
    from bench.failover import soak
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    real = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    tell(_report(soak(seconds, real, period=period, seed=seed)), as_json=as_json)


def _report(result: "Soak") -> Report:
    return Report(
        title=f"{result.ends.total()} requests in {result.seconds:g} s, "
        f"{result.faults.total()} faults, {result.resumed} answers went on elsewhere",
        columns=("what", "how often"),
        rows=[
            [f"{kind}: {name}", f"{count:,}"]
            for kind, counts in (("request", result.ends), ("node", result.faults))
            for name, count in counts.most_common()
        ],
        data=result.as_json(),
        goals=result.goals,
        notes=[*result.wrong, *result.left],
    )

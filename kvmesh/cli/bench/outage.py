"""`kvmesh bench outage`: what requests notice when Prometheus is away."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.outage import OutageResult
    from kvmesh.cli.fleet import Fleet
    from kvmesh.cli.serve_config import ServeConfig


def outage(
    seconds: Annotated[float, typer.Option(min=0.5, help="Of each of the two outages.")] = 60.0,
    as_json: Json = False,
) -> None:
    """What requests notice when a Prometheus that scrapes the fleet is frozen, or killed.

    Examples:

        kvmesh bench outage
        kvmesh bench outage --seconds 5

    A fleet and a Prometheus of its own; prometheus must be installed. Four streams at a time,
    four times as long as an outage: no request may fail, and none may wait or cost more.
    """
    from bench.outage import measure_outage
    from kvmesh.cli.bench.own_fleet import on_own_fleet

    def measure(config: "ServeConfig", fleet: "Fleet") -> "OutageResult":
        places = {"router": [config.http_url], "cache-node": fleet.metrics_urls}
        hosts = {job: [url.split("/")[2] for url in urls] for job, urls in places.items()}
        pids = [child.pid for child in fleet.children if child.pid is not None]
        try:
            return measure_outage(config.grpc_target, hosts, pids, seconds)
        except (FileNotFoundError, RuntimeError) as error:
            fail(str(error))

    tell(_report(on_own_fleet(measure)), as_json=as_json)


def _report(result: "OutageResult") -> Report:
    from bench.outage import DEAD, FROZEN, Moment

    names = {
        Moment(outage, away): outage if away else f"around {outage}"
        for outage in (FROZEN, DEAD)
        for away in (False, True)
    }
    times = {name: (result.first(each), result.whole(each)) for each, name in names.items()}
    work = {name: result.cpu(each) for each, name in names.items()}
    return Report(
        title=f"Requests while Prometheus is away for {result.seconds:g} s",
        columns=("Prometheus", "requests", "first token ms", "whole ms", "longest", "CPU ms"),
        rows=[
            [
                name,
                f"{len(whole.values)}",
                *(f"{value * 1e3:.0f}" for value in (first.median, whole.median, whole.most)),
                f"{work[name] * 1e3:.0f}",
            ]
            for name, (first, whole) in times.items()
        ],
        data={
            "seconds": result.seconds,
            "failed": len(result.problems),
            "whole_s": {name: whole.as_json() for name, (_, whole) in times.items()},
            "cpu_s": work,
        },
        goals=result.goals,
        notes=["CPU is of router and nodes, for an answer.", *result.problems[:5]],
    )

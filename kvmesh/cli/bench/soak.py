"""`kvmesh bench soak`: what ten thousand requests leave behind on a node."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.soak import Soak


def soak(
    requests: Annotated[int, typer.Option(min=2001, help="2,000 of them to warm up.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Of requests and their ends.")] = 0,
    as_json: Json = False,
) -> None:
    """Thousands of requests on a live node, many of them left at a random moment: nothing may leak.

    Examples:

        kvmesh bench soak
        kvmesh bench soak --requests 100000 --seed 7

    A tiny random model over gRPC. At the end no block may be held, no task, thread or descriptor be
    left, and memory may have grown by 1 KB a request at most.
    """
    from bench.soak import soak as run
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    real = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    tell(_report(run(requests, real, seed)), as_json=as_json)


def _report(result: "Soak") -> Report:
    from dataclasses import asdict

    before, after = asdict(result.before), asdict(result.after)
    return Report(
        title=f"{result.requests} requests, the last of them in {result.seconds:.0f} s",
        columns=("", "after the warm-up", "at the end"),
        rows=[[name, f"{before[name]:,}", f"{after[name]:,}"] for name in before],
        data=result.as_json(),
        goals=result.goals,
        notes=[f"{number} {end}" for end, number in sorted(result.ends.items())],
    )

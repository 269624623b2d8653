"""`kvmesh bench ttft`: what a cached prefix saves."""

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.ttft import TtftResult
    from kvmesh.cli.fleet import Fleet


def ttft(
    router: Annotated[
        str | None,
        typer.Option(
            envvar="KVMESH_ROUTER",
            help="host:port of a running router's gRPC API.",
            show_default="a fleet of its own",
        ),
    ] = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Pairs of requests to measure.")] = 7,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="Length of the shared prefix.")] = 1024,
    tail_tokens: Annotated[int, typer.Option(min=1, help="Length of what differs.")] = 16,
    as_json: Json = False,
) -> None:
    """Time to the first token, with and without the prefix in the cache.

    Examples:

        kvmesh bench ttft
        kvmesh bench ttft --router 127.0.0.1:50051 --prefix-tokens 4000

    Fresh random prefixes, so nothing is cached that the benchmark did not put there. The warm
    median should be a quarter of the cold one at most.
    """
    from bench.ttft import measure_ttft
    from kvmesh.cli.ask import explain
    from kvmesh.errors import RequestError

    def measure(target: str) -> "TtftResult":
        try:
            return measure_ttft(
                target,
                repetitions=repetitions,
                prefix_tokens=prefix_tokens,
                tail_tokens=tail_tokens,
            )
        except RequestError as error:
            fail(explain(error, target))

    result = measure(router) if router is not None else _on_own_fleet(measure)
    tell(_report(result), as_json=as_json)


def _on_own_fleet(measure: "Callable[[str], TtftResult]") -> "TtftResult":
    """Starts two nodes and a router on free ports for the time of the measurement."""
    from kvmesh.cli.hosting import host
    from kvmesh.cli.screen import Screen
    from kvmesh.cli.serve_config import on_free_ports

    config = on_free_ports()
    results: list[TtftResult] = []

    async def body(_fleet: "Fleet") -> None:
        results.append(await asyncio.to_thread(measure, config.grpc_target))

    host(config, Screen(Console(stderr=True, highlight=False), quiet=True), body)
    return results[0]


def _report(result: "TtftResult") -> Report:
    lines = (("cold", result.cold, 0.0), ("warm", result.warm, result.cached_tokens))
    rows = [
        [name, *(f"{ms * 1e3:.1f}" for ms in (time.median, time.least, time.most)), f"{cached:g}"]
        for name, time, cached in lines
    ]
    lengths = f"{result.prefix_tokens} shared + {result.tail_tokens} own tokens"
    return Report(
        title=f"Time to first token, {lengths}",
        columns=("", "median ms", "min", "max", "cached tokens"),
        rows=[*rows, ["ratio", f"{result.ratio:.3f}", "", "", ""]],
        data=result.as_json(),
        goals=[result.goal],
    )

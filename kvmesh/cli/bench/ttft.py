"""`kvmesh bench`: measurements that anyone can repeat."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.ttft import TtftResult
    from kvmesh.cli.fleet import Fleet

app = typer.Typer(no_args_is_help=True, help="Measure a fleet.", rich_markup_mode="markdown")


@app.callback()
def bench() -> None:
    """Measure a fleet. Each benchmark starts one of its own unless told where one runs."""


@app.command()
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time to the first token, with and without the prefix in the cache.

    Examples:

        kvmesh bench ttft
        kvmesh bench ttft --router 127.0.0.1:50051 --prefix-tokens 4000

    Fresh random prefixes, so nothing is cached that the benchmark did not put there. Exit code 2
    when the warm median is above a quarter of the cold one.
    """
    from bench.ttft import GOAL, measure_ttft
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
    _report(result, as_json)
    if result.ratio > GOAL:
        raise typer.Exit(2)


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


def _report(result: "TtftResult", as_json: bool) -> None:
    from bench.machine import describe_machine

    machine, command = describe_machine(), " ".join(["kvmesh", *sys.argv[1:]])
    if as_json:
        typer.echo(json.dumps({**result.as_json(), "machine": machine, "command": command}))
        return
    console = Console(highlight=False)
    console.print(_table(result))
    console.print(" · ".join(f"{name}: {value}" for name, value in machine.items()), style="dim")
    console.print(f"command: {command}", style="dim")


def _table(result: "TtftResult") -> Table:
    title = f"Time to first token, {result.prefix_tokens} shared + {result.tail_tokens} own tokens"
    table = Table(title=title)
    for column in ("", "median ms", "min", "max", "cached tokens"):
        table.add_column(column, justify="right" if column else "left")
    for name, answers, cached in (
        ("cold", [pair.cold for pair in result.pairs], 0),
        ("warm", [pair.warm for pair in result.pairs], result.cached_tokens),
    ):
        times = sorted(answer.ttft * 1e3 for answer in answers)
        middle = result.cold if name == "cold" else result.warm
        table.add_row(
            name, f"{middle * 1e3:.1f}", f"{times[0]:.1f}", f"{times[-1]:.1f}", f"{cached:g}"
        )
    table.add_row("ratio", f"{result.ratio:.3f}", "", "", "")
    return table

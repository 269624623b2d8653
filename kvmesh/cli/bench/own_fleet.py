"""A fleet for the time of a measurement."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import typer
from rich.console import Console

from kvmesh.cli.fleet import Fleet
from kvmesh.cli.hosting import host
from kvmesh.cli.screen import Screen
from kvmesh.cli.serve_config import ServeConfig, on_free_ports

T = TypeVar("T")

INTERRUPTED = 130
"""Exit code of a measurement that was stopped before it had a result."""


def on_own_fleet(
    measure: Callable[[ServeConfig, Fleet], T], config: ServeConfig | None = None
) -> T:
    """As `beside_own_fleet`, for what is not async: `measure` runs on a thread."""

    async def body(settled: ServeConfig, fleet: Fleet) -> T:
        return await asyncio.to_thread(measure, settled, fleet)

    return beside_own_fleet(body, config)


def beside_own_fleet(
    measure: Callable[[ServeConfig, Fleet], Awaitable[T]], config: ServeConfig | None = None
) -> T:
    """Starts a fleet on free ports, two default nodes unless `config` says otherwise, and awaits
    `measure` beside it. Progress goes to stderr. The first SIGINT or SIGTERM cancels `measure`,
    which may still return what it has; else the command ends.
    """
    settled = on_free_ports(config)
    results: list[T] = []

    async def body(fleet: Fleet) -> None:
        results.append(await measure(settled, fleet))

    host(settled, Screen(Console(stderr=True, highlight=False), quiet=True), body)
    if not results:
        raise typer.Exit(INTERRUPTED)
    return results[0]

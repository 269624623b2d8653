"""A fleet for the time of a measurement."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from rich.console import Console

from kvmesh.cli.fleet import Fleet
from kvmesh.cli.hosting import host
from kvmesh.cli.screen import Screen
from kvmesh.cli.serve_config import ServeConfig, on_free_ports

T = TypeVar("T")


def on_own_fleet(
    measure: Callable[[ServeConfig, Fleet], T], config: ServeConfig | None = None
) -> T:
    """Starts a fleet on free ports, two default nodes unless `config` says otherwise, and calls
    `measure` beside it, on a thread. Progress goes to stderr.
    """
    settled = on_free_ports(config)
    results: list[T] = []

    async def body(fleet: Fleet) -> None:
        results.append(await asyncio.to_thread(measure, settled, fleet))

    host(settled, Screen(Console(stderr=True, highlight=False), quiet=True), body)
    return results[0]

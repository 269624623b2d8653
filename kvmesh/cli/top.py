"""`kvmesh top`: the whole fleet, live, on a terminal."""

import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.live import Live
from rich.text import Text

from kvmesh.cli.connection import (
    DEFAULT_ROUTER,
    ApiKey,
    Router,
    Tls,
    TlsCa,
    TlsCert,
    TlsKey,
    connect,
)
from kvmesh.cli.errors import fail
from kvmesh.cli.tables import console_for_tables

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from kvmesh.cli.overviews import Overviews

TIMEOUT = 5.0  # seconds for the router to answer
GLANCE = 0.1  # seconds between two looks at keys and at the size of the terminal


def top(
    router: Router = DEFAULT_ROUTER,
    interval: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds between two looks.")
    ] = 1.0,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Watch a fleet: its rates and queue, each node's memory and load, the last requests.

    Examples:

        kvmesh top
        kvmesh top --router 10.0.0.2:50051 --interval 5

    For admins: KVMESH_API_KEY is a key of the router's --admin-key-file; while there is none, on
    the router's host. q or Ctrl-C leaves. Where the output is no terminal it is printed once. The
    page /ui of the router shows the same in a browser.
    """
    from kvmesh.cli.overviews import Overviews

    with connect(router, api_key, tls, (tls_ca, tls_cert, tls_key), timeout=TIMEOUT) as client:
        overviews = Overviews(client, router, interval)
        overviews.take()
        if overviews.newest is None:
            fail(overviews.problem or "the router says nothing")
        console = console_for_tables()
        if console.is_terminal:
            overviews.start()
            _watch(overviews, console)
        else:
            console.print(_view(overviews, console.width, height=None))


def _watch(overviews: "Overviews", console: "Console") -> None:
    from kvmesh.cli.keys import pressed, single_keys

    shown = None
    try:
        with single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                state = (overviews.seen, console.size, int(_age(overviews)))
                if state != shown:
                    shown = state
                    live.update(_view(overviews, *console.size), refresh=True)
                if "q" in pressed(GLANCE).lower():
                    return
    except KeyboardInterrupt:
        return


def _view(overviews: "Overviews", width: int, height: int | None) -> "RenderableType":
    from kvmesh.cli.top_view import view
    from kvmesh.printable import printable

    assert overviews.newest is not None
    if overviews.problem is None:
        status = Text("● live", style="green")
    else:
        age = f"● no answer, last seen {_age(overviews):.0f} s ago: {overviews.problem}"
        status = Text(printable(age), style="bold red")
    return view(overviews.newest, status, width, height)


def _age(overviews: "Overviews") -> float:
    return time.monotonic() - overviews.seen

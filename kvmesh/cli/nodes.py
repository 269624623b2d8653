"""`kvmesh nodes`: the fleet as its router sees it."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
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
from kvmesh.printable import printable

if TYPE_CHECKING:
    from kvmesh.v1.fleet_pb2 import NodeStatus

TIMEOUT = 5.0  # seconds for the router to answer
STYLES = {"up": "green", "draining": "yellow", "connecting": "yellow"}
THERE = ("up", "draining")
COLUMNS = ("blocks", "usage", "cached", "running", "waiting", "hit rate", "index")


def nodes(
    router: Router = DEFAULT_ROUTER,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON array instead of a table.")
    ] = False,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show the nodes of a fleet: state, memory, load, and how well their caches work.

    Examples:

        kvmesh nodes
        kvmesh nodes --json --router 10.0.0.2:50051

    blocks are held by requests, of all; usage is their share; cached blocks hold prefixes and are
    given up when memory is needed. The hit rate is of all prompt tokens since the node's start.
    `kvmesh top` shows more, and goes on.
    """
    from kvmesh.cli.ask import explain
    from kvmesh.errors import RequestError

    with connect(router, api_key, tls, (tls_ca, tls_cert, tls_key), timeout=TIMEOUT) as client:
        try:
            found = client.list_nodes()
        except RequestError as error:
            fail(explain(error, router))
        if as_json:
            typer.echo(json.dumps([as_fields(node) for node in found]))
        else:
            console_for_tables().print(table(found))


def table(found: Sequence["NodeStatus"]) -> Table:
    """One line a node, with the reason below where it does not serve."""
    made = Table(box=None, pad_edge=False)
    made.add_column("node")
    made.add_column("address")
    made.add_column("state")
    for column in COLUMNS:
        made.add_column(column, justify="right")
    for node in found:
        fields = as_fields(node)
        name, address = Text(printable(fields["node"])), Text(printable(fields["address"]))
        state = Text(fields["state"], style=STYLES.get(fields["state"], "red"))
        made.add_row(name, address, state, *_cells(fields))
        if fields["detail"]:
            made.add_row("", Text(printable(fields["detail"]), style="dim"))
    return made


def _cells(fields: dict[str, Any]) -> list[str]:
    if fields["state"] not in THERE:
        return ["–"] * len(COLUMNS)  # what it last told is over
    rate = fields["hit_rate"]
    return [
        f"{fields['held_blocks']}/{fields['blocks']}",
        f"{fields['usage']:.0%}",
        str(fields["cached_blocks"]),
        str(fields["running"]),
        str(fields["waiting"]),
        "–" if rate is None else f"{rate:.0%}",
        f"{fields['index']} {fields['indexed_blocks']}",
    ]


def as_fields(node: "NodeStatus") -> dict[str, Any]:
    """What is shown of a node. `hit_rate` is None until a prompt has been looked up."""
    from kvmesh.v1.fleet_pb2 import IndexMode, NodeHealth

    load = node.load
    held = max(0, node.num_blocks - load.free_blocks - load.evictable_blocks)
    return {
        "node": node.name,
        "address": node.address,
        "state": NodeHealth.Name(node.health).removeprefix("NODE_HEALTH_").lower(),
        "detail": node.detail,
        "blocks": node.num_blocks,
        "held_blocks": held,
        "usage": held / node.num_blocks if node.num_blocks else 0.0,
        "cached_blocks": load.evictable_blocks,
        "running": load.running,
        "waiting": load.waiting,
        "hit_rate": load.hit_tokens / load.queried_tokens if load.queried_tokens else None,
        "index": IndexMode.Name(node.index_mode).removeprefix("INDEX_MODE_").lower(),
        "indexed_blocks": node.indexed_blocks,
        "in_flight": node.in_flight,
        "epoch": node.epoch,
    }

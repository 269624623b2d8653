"""`kvmesh explain`: where a prompt would go, and what each node would cost."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

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
    from kvmesh.v1.generate_pb2 import RouteCandidate, RouteReport

TIMEOUT = 30.0  # seconds; a long prompt is tokenised
SHOWN = ("node", "cost", "cached", "excluded")  # of a candidate, in columns of their own


def explain(
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads it from standard input.")],
    router: Router = DEFAULT_ROUTER,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="As a user's message, or as text to go on from.")
    ] = True,
    max_tokens: Annotated[
        int | None, typer.Option(min=0, help="Most tokens to generate.", show_default="what fits")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The whole report as JSON instead of a table.")
    ] = False,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Show where a prompt would go now, and why, without sending it.

    Examples:

        kvmesh explain "Why is the sky blue?"
        kvmesh explain --raw - < prompt.txt

    Each node has a line: what it would cost, the lowest first, and what the cost is made of.
    """
    from kvmesh.cli.ask import explain as explain_error
    from kvmesh.errors import RequestError

    text = sys.stdin.read() if prompt == "-" else prompt
    fields: dict[str, Any] = {} if max_tokens is None else {"max_tokens": max_tokens}
    if chat:
        fields["messages"] = [{"role": "user", "content": text}]
    try:
        with connect(router, api_key, tls, (tls_ca, tls_cert, tls_key), timeout=TIMEOUT) as client:
            report = client.explain(None if chat else text, **fields)
    except RequestError as error:
        fail(explain_error(error, router))
    if as_json:
        from google.protobuf.json_format import MessageToJson

        typer.echo(
            MessageToJson(
                report, indent=None, preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
        )  # fmt: skip
        return
    console = console_for_tables()
    console.print(
        f"[bold]{report.node}[/]: {report.reason} ({report.policy}, "
        f"{report.prompt_tokens} tokens)\n",
        soft_wrap=True,
    )
    console.print(table(report))


def table(report: "RouteReport") -> Table:
    """One line a node. Parts of the cost have the names that the contract gives them."""
    parts = part_names()
    made = Table(box=None, pad_edge=False)
    for column in ("node", "cost", "cached", *parts):
        title = column.replace("_", " ")
        made.add_column(title, justify="left" if column == "node" else "right")
    made.add_column("")
    for each in report.candidates:
        cost = "–" if each.excluded else f"{each.cost:.1f}"
        cells = [_number(getattr(each, part)) for part in parts]
        made.add_row(each.node, cost, _cached(each), *cells, each.excluded)
    return made


def part_names() -> list[str]:
    """What a candidate has beside that: a new part of the cost shows itself."""
    from kvmesh.v1.generate_pb2 import RouteCandidate

    names: list[str] = list(RouteCandidate.DESCRIPTOR.fields_by_name)
    return [name for name in names if name not in SHOWN]


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.1f}"


def _cached(candidate: "RouteCandidate") -> str:
    """Tokens by tier, those that are there."""
    cached = candidate.cached
    tiers = {"gpu": cached.gpu, "cpu": cached.cpu, "remote": cached.remote}
    beside = [f"{count} {tier}" for tier, count in tiers.items() if count and tier != "gpu"]
    return " + ".join([str(cached.gpu), *beside])

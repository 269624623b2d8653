"""`kvmesh doctor`: what the metrics of a fleet say that should be changed."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.table import Table
from rich.text import Text

from kvmesh.cli.connection import TlsCa, TlsCert, TlsKey
from kvmesh.cli.tables import console_for_tables
from kvmesh.printable import printable

if TYPE_CHECKING:
    import ssl

    from kvmesh.doctor.finding import Finding
    from kvmesh.doctor.snapshot import Snapshot

ROUTER = "http://127.0.0.1:8000"
UNREAD = 3
"""Exit code when an address could not be read; below it, the worst level of the findings."""
STYLES = {"FINE": "green", "ADVICE": "yellow", "SERIOUS": "bold red"}


def doctor(
    router: Annotated[
        str | None,
        typer.Option(
            help="URL of the router's HTTP API; it names its nodes.",
            show_default=f"{ROUTER}, unless nodes or a Prometheus are given",
        ),
    ] = None,
    node: Annotated[
        list[str] | None,
        typer.Option(help="URL of a node's metrics. Once for each.", show_default="none"),
    ] = None,
    prometheus: Annotated[
        str | None,
        typer.Option(help="Ask this Prometheus instead.", show_default="none"),
    ] = None,
    window: Annotated[
        float, typer.Option(min=1, help="With a Prometheus: seconds in which things count.")
    ] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Say what a fleet's metrics show, and which flag to change.

    Examples:

        kvmesh doctor
        kvmesh doctor --router http://10.0.0.2:8000 --json
        kvmesh doctor --node http://10.0.0.5:9400 --node http://10.0.0.6:9400
        kvmesh doctor --prometheus http://127.0.0.1:9090 --window 3600

    Looks at memory, preemptions, the prefix cache, lengths, watermarks, queue, router and kernels.
    Exit code: 0 all is fine, 1 there is advice, 2 something is serious, 3 an address could not be
    read. Without a Prometheus things count since each process started.
    """
    from kvmesh.doctor.examine import examine
    from kvmesh.doctor.live import UnreadableError, read_fleet
    from kvmesh.doctor.prometheus import read_prometheus

    context = _context(tls_ca, tls_cert, tls_key)
    try:
        if prometheus is not None:
            fleet = read_prometheus(prometheus, window, context)
        else:
            routers = [router] if router is not None else [] if node else [ROUTER]
            fleet = read_fleet(routers, node or [], context)
    except UnreadableError as error:
        _end_unread(str(error))
    found = examine(fleet)
    _tell(found, fleet, as_json=as_json)
    if fleet.unread:
        raise typer.Exit(UNREAD)
    raise typer.Exit(max((finding.level for finding in found), default=0))


def _context(tls_ca: TlsCa, tls_cert: TlsCert, tls_key: TlsKey) -> "ssl.SSLContext | None":
    """None for the system's roots."""
    if tls_ca is None:
        return None
    import ssl

    try:
        context = ssl.create_default_context(cafile=tls_ca)
        if tls_cert is not None:
            context.load_cert_chain(tls_cert, tls_key)
    except (OSError, ValueError) as error:
        _end_unread(f"--tls-ca, --tls-cert, --tls-key: {error}")
    return context


def _end_unread(message: str) -> NoReturn:
    typer.secho(f"kvmesh: {printable(message)}", fg="red", err=True)
    raise typer.Exit(UNREAD)


def _tell(found: "Sequence[Finding]", fleet: "Snapshot", *, as_json: bool) -> None:
    for problem in fleet.unread:
        typer.secho(f"kvmesh: {printable(problem)}", fg="red", err=True)
    if as_json:
        findings = [finding.as_json() for finding in found]
        typer.echo(json.dumps({"findings": findings, "unread": list(fleet.unread)}))
    elif sys.stdout.isatty():
        console_for_tables().print(_table(found))
    else:
        for finding in found:
            typer.echo(_line(finding))


def _table(found: "Sequence[Finding]") -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("", "where", "check", "finding, evidence", "change"):
        table.add_column(column)
    for finding in found:
        level = Text(finding.level.name.lower(), style=STYLES[finding.level.name])
        where, words, evidence, change = map(
            printable, (finding.where, finding.finding, finding.evidence, finding.change)
        )
        told = Text.assemble(words, "\n", (evidence, "dim"))
        table.add_row(level, Text(where), finding.check, told, Text(change, style="bold"))
    return table


def _line(finding: "Finding") -> str:
    change = f" -> {finding.change}" if finding.change else ""
    told = f"{finding.finding} ({finding.evidence}){change}"
    return printable(f"{finding.level.name.lower()}: {finding.where}: {finding.check}: {told}")

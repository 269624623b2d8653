"""The options of commands that use a running fleet: where its router is, and who asks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.certificates import CertificateFiles
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from kvmesh.client import Client

DEFAULT_ROUTER = "127.0.0.1:50051"
PANEL = "Connection"

Router = Annotated[
    str,
    typer.Option(
        envvar="KVMESH_ROUTER", help="host:port of the router's gRPC API.", rich_help_panel=PANEL
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="KVMESH_API_KEY",
        help="Who asks. Better in the environment: others see a command line.",
        show_default="none",
        rich_help_panel=PANEL,
    ),
]
Tls = Annotated[
    bool,
    typer.Option(
        "--tls",
        help="Talk TLS to a router with a publicly trusted certificate.",
        rich_help_panel=PANEL,
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        envvar="KVMESH_ROUTER_CA",
        help="PEM roots that the router's certificate must come from; turns TLS on.",
        show_default="none",
        rich_help_panel=PANEL,
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option(
        envvar="KVMESH_CLIENT_CERT",
        help="PEM certificate to show to the router.",
        show_default="none",
        rich_help_panel=PANEL,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option(
        envvar="KVMESH_CLIENT_KEY",
        help="PEM key of that.",
        show_default="none",
        rich_help_panel=PANEL,
    ),
]
Direct = Annotated[
    bool,
    typer.Option(
        "--direct",
        help="Stream from the nodes, on leases of the router.",
        rich_help_panel=PANEL,
    ),
]


def connect(
    router: str,
    api_key: str | None,
    tls: bool,
    files: tuple[Path | None, Path | None, Path | None],
    *,
    timeout: float | None = None,
    direct: bool = False,
) -> "Client":
    """A client of the router; `files` are roots, certificate and key. Ends the command with what is
    wrong with a file.
    """
    from kvmesh.client import Client

    ca, cert, key = files
    try:
        shown = CertificateFiles(cert, key, ca)
        wanted = tls or ca is not None or cert is not None
        return Client(
            router,
            timeout=timeout,
            api_key=api_key,
            tls=shown if wanted else None,
            direct=direct,
        )
    except ValueError as error:
        fail(str(error))

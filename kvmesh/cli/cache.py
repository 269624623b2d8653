"""`kvmesh cache`: what an operator does with the caches of a fleet."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

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

if TYPE_CHECKING:
    from kvmesh.v1.fleet_pb2 import NodeFailure
    from kvmesh.v1.generate_pb2 import GenerateRequest

TIMEOUT = 600.0  # seconds: a long prefix is computed

app = typer.Typer(
    no_args_is_help=True,
    help="Pin prefixes in the caches of a fleet, or clear them. For admins.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
def pin(
    prefix: Annotated[str, typer.Argument(help="The prefix; - reads it from standard input.")],
    router: Router = DEFAULT_ROUTER,
    chat: Annotated[
        bool,
        typer.Option("--chat/--raw", help="As a chat's system message, or as text to go on from."),
    ] = True,
    nodes: Annotated[
        int, typer.Option(min=0, help="On how many nodes; 0: where it is now, or one.")
    ] = 0,
    ttl: Annotated[
        float | None, typer.Option(help="Seconds that the pin lives.", show_default="for ever")
    ] = None,
    priority: Annotated[
        int, typer.Option(min=-100, max=100, help="Among pins, larger stays longer.")
    ] = 0,
    tenant: Annotated[
        str, typer.Option(help="Whose cache.", show_default="that of everybody")
    ] = "",
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Keep a prefix in the cache. Prints the name of the pin, for `kvmesh cache unpin`.

    Examples:

        kvmesh cache pin - --nodes 2 < system-prompt.txt
        kvmesh cache pin --raw --ttl 3600 "Once upon a time"

    Only whole blocks are pinned. Pins take at most half of a node's pool, and give way to a request
    that fits nowhere else.
    """
    from kvmesh.cli.ask import explain
    from kvmesh.errors import RequestError

    try:
        asked = _prefix(sys.stdin.read() if prefix == "-" else prefix, chat)
        with connect(router, api_key, tls, (tls_ca, tls_cert, tls_key), timeout=TIMEOUT) as client:
            pinned = client.pin_prefix(
                asked, nodes=nodes, ttl=ttl, priority=priority, tenant=tenant
            )
    except RequestError as error:
        fail(explain(error, router))
    typer.echo(pinned.pin_id)
    typer.echo(f"{pinned.blocks} blocks on {', '.join(pinned.nodes)}", err=True)
    _end(pinned.failures)


@app.command()
def unpin(
    pin_id: Annotated[str, typer.Argument(help="What `kvmesh cache pin` printed.")],
    router: Router = DEFAULT_ROUTER,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Let a pin go, on all nodes that have it.

    Examples:

        kvmesh cache unpin 3f2a9c…

    Its blocks stay cached until their memory is needed.
    """
    from kvmesh.cli.ask import explain
    from kvmesh.errors import RequestError

    try:
        with connect(router, api_key, tls, (tls_ca, tls_cert, tls_key), timeout=TIMEOUT) as client:
            released = client.unpin_prefix(pin_id)
    except RequestError as error:
        fail(explain(error, router))
    typer.echo(f"let go on {', '.join(released.nodes)}")
    _end(released.failures)


@app.command()
def clear(
    router: Router = DEFAULT_ROUTER,
    node: Annotated[
        str, typer.Option(help="Name of the node to clear.", show_default="all nodes")
    ] = "",
    pins: Annotated[bool, typer.Option("--pins", help="Let all pins go first.")] = False,
    api_key: ApiKey = None,
    tls: Tls = False,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Forget what is cached.

    Examples:

        kvmesh cache clear
        kvmesh cache clear --node node-1 --pins

    Blocks that a request is using stay, and those that are pinned. It counts for every tenant.
    """
    from kvmesh.cli.ask import explain
    from kvmesh.errors import RequestError

    try:
        with connect(router, api_key, tls, (tls_ca, tls_cert, tls_key), timeout=TIMEOUT) as client:
            cleared = client.clear_cache(node, pins=pins)
    except RequestError as error:
        fail(explain(error, router))
    typer.echo(f"{cleared.cleared_blocks} blocks forgotten on {', '.join(cleared.nodes)}")
    _end(cleared.failures)


def _prefix(text: str, chat: bool) -> "GenerateRequest":
    from kvmesh.make_request import make_request

    if not chat:
        return make_request(text)
    request = make_request(messages=[{"role": "system", "content": text}])
    request.chat.add_generation_prompt = False
    return request


def _end(failures: "Sequence[NodeFailure]") -> None:
    """Exit code 1 when a node did not do its part."""
    if failures:
        fail("; ".join(f"{each.node}: {each.reason}" for each in failures))

"""`kvmesh bench router`: what the router itself costs."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.figures import Spread
    from bench.proxy_cost import ProxyCost
    from bench.routing_cost import RoutingCost


def router(
    quick: Annotated[bool, typer.Option(help="Fewer rounds: a minute.")] = False,
    as_json: Json = False,
) -> None:
    """CPU time of the router for a decision, a streamed message, a request and a lease.

    Examples:

        kvmesh bench router --quick
        kvmesh bench router --json

    Decisions are measured in one process, over an index in which 8 nodes hold all blocks of each
    prompt: block keys, admission, look-up, choice and reservation, without tokenising. Then a
    router's process before a stub node: 64 streams at once with a message every 10 ms each, and
    leases, 64 at once, from Route to the end of their stream; then from RouteStream, as direct
    clients do, 64 that begin together and 64 that each follow another. In turns with it, what gRPC
    alone takes of that: a process that makes the same calls and does nothing in them.
    """
    from bench.proxy_cost import measure_proxy_cost
    from bench.routing_cost import measure_routing_cost

    routing = measure_routing_cost(1000 if quick else 5000)
    try:
        proxy = measure_proxy_cost(2 if quick else 5)
    except RuntimeError as error:
        fail(str(error))
    tell(_report(routing, proxy), as_json=as_json)


def _report(routing: "RoutingCost", proxy: "ProxyCost") -> Report:
    rows = []
    for each in routing.decisions:
        parts = f"keys {each.keys:.0f}, admit {each.admit:.0f}, place {each.place:.0f}"
        rows.append([f"routing, {each.blocks} blocks", f"{each.total:.0f}", parts])
        fresh = f"{each.match_fresh:.1f} with keys just made"
        rows.append([f"match alone, {each.blocks} blocks", f"{each.match:.1f}", fresh])
    router, bare = proxy.router, proxy.bare
    rows += [
        _row("a proxied message", router.message, bare.message),
        _row("a request beside its messages", router.request, bare.request),
        _row("a lease from Route, to its end", router.route, bare.route),
        _row(f"a lease from RouteStream, {proxy.together:.0f} a message", router.lease, bare.lease),
        _row(f"the same, {proxy.apart:.1f} a message", router.steady, bare.steady),
        ["an update of the mirror", f"{1e6 / routing.mirror.updates_a_second:.2f}", "in steps"],
    ]
    size = f"{routing.mirror.bytes_an_entry:.0f} bytes an entry of a mirror of a million"
    return Report(
        title="The router's CPU time, 8 nodes",
        columns=("", "µs", ""),
        rows=rows,
        data={"routing": routing.as_json(), "proxy": proxy.as_json()},
        goals=[*routing.goals, *proxy.goals],
        notes=[f"{size}, a third of them on both of two nodes.", "The fastest of several rounds."],
    )


def _row(name: str, spread: "Spread", bare: "Spread") -> list[str]:
    return [
        name,
        f"{spread.least:.0f}",
        f"median {spread.median:.0f}, gRPC alone {bare.least:.0f} ({bare.median:.0f})",
    ]

"""`kvmesh bench generator`: what the load generator itself can take."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.load.capacity import Capacity


def generator(
    rounds: Annotated[int, typer.Option(min=1, help="The fastest counts.")] = 3,
    as_json: Json = False,
) -> None:
    """CPU time of `kvmesh load` for a message and a request, on both transports.

    Examples:

        kvmesh bench generator
        kvmesh bench generator --rounds 5 --json

    64 streams at once with a message every 10 ms each, from a server that computes nothing, in a
    process of its own. Prompts are 1,024 token ids that share nothing.
    """
    from bench.load.capacity import measure_capacity

    tell(_report(measure_capacity(rounds)), as_json=as_json)


def _report(found: "list[Capacity]") -> Report:
    rows = [
        [
            each.transport,
            f"{1e6 * each.message.least:.1f}",
            f"{each.messages:,.0f}",
            f"{1e6 * each.request.least:,.0f}",
        ]
        for each in found
    ]
    return Report(
        title="The load generator's CPU time",
        columns=("", "µs a message", "messages/s of a core", "µs a request"),
        rows=rows,
        data={"transports": [each.as_json() for each in found]},
        notes=["A request: to draw, write and send 1,024 token ids, and to end its stream."],
    )

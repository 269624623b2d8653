"""`kvmesh bench routing`: what each policy makes of a trace."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.routing import Routed, Routing


def routing(
    trace: Annotated[Path, typer.Option(help="File in Mooncake's format.", exists=True)],
    requests: Annotated[int, typer.Option(min=1, help="How many of its first ones.")] = 2000,
    nodes: Annotated[int, typer.Option(min=1, max=1024, help="Simulated nodes.")] = 4,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of 512 tokens a node.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the choice between equals.")] = 0,
    as_json: Json = False,
) -> None:
    """Cache hits and balance of every policy on a recorded trace, on simulated nodes.

    Examples:

        kvmesh bench routing --trace mooncake_conversation.jsonl
        kvmesh bench routing --trace mooncake_conversation.jsonl --nodes 16 --blocks 500 --json

    The router's own index, ledger and policies, and nodes' own block pools, on a virtual clock, so
    the figures are the same everywhere. Beside them one cache as large as all together.
    """
    from bench.routing import measure_routing
    from bench.trace import read_trace

    try:
        measured = measure_routing(read_trace(trace, requests), nodes, blocks, seed)
    except (OSError, ValueError) as error:
        fail(str(error))
    tell(_report(measured, requests, nodes, blocks, seed), as_json=as_json)


def _report(measured: "Routing", requests: int, nodes: int, blocks: int, seed: int) -> Report:
    from bench.simulated_node import PREFILL_SPEED, TOKEN_SECONDS

    speed = f"{PREFILL_SPEED:,.0f} tokens a second and decodes one in {TOKEN_SECONDS * 1e3:g} ms"
    return Report(
        title=f"{requests} requests on {nodes} nodes of {blocks} blocks of 512 tokens",
        columns=("", "hit", "of ideal", "max ÷ mean prefill", "TTFT mean, s", "p50", "p95"),
        rows=[_row(each, measured.ideal) for each in measured.policies],
        data={
            "requests": requests,
            "nodes": nodes,
            "blocks": blocks,
            "seed": seed,
            "ideal_hit_tokens": measured.ideal,
            "policies": [each.as_json() for each in measured.policies],
        },
        goals=measured.goals,
        notes=[
            "Ideal: one pool of all blocks, one request at a time, nothing held.",
            f"Simulated: a node prefills {speed}, prompts one after the other.",
        ],
    )


def _row(routed: "Routed", ideal: int) -> list[str]:
    times = (f"{seconds:.2f}" for seconds in (routed.ttft_mean, *routed.ttft_quantiles))
    of_ideal = f"{routed.hit_tokens / ideal:.3f}" if ideal else "–"
    return [routed.policy, f"{routed.hit_share:.1%}", of_ideal, f"{routed.spread:.3f}", *times]

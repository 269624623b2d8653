"""`kvmesh plan`: what fits, before anything is started."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvmesh.cli.errors import fail
from kvmesh.cli.plan.config import PlanConfig
from kvmesh.cli.tables import console_for_tables

if TYPE_CHECKING:
    from cache_node.plan.plan import Plan
    from kvmesh.cli.plan.report import Section
    from kvmesh.cli.plan.sweep import Sweep
    from kvmesh.cli.plan.trace import TracePlan

HELP = """
Say what fits: bytes of a token, blocks, requests at once, and flags for your work.

Examples:

    kvmesh plan
    kvmesh plan llama-3-70b --max-model-len 8192 --concurrency 16 --gpu h200 --gpus 2 --tp 2
    kvmesh plan ./my-model --gpu 24 --kv-cache-dtype fp8 --sweep --plot sweep.png
    kvmesh plan --trace conversation.jsonl --kv-cache-bytes 8589934592
    kvmesh plan deepseek-v3 --gpu h200 --tp 8 --json

Nothing is downloaded or loaded. Blocks are counted by the code of the node: on a CPU, or with
--kv-cache-bytes or --num-blocks, they are what a started node tells, to the block; on a GPU
otherwise they rest on two estimates, which the report names.
"""
MARKS = {"✓": "green", "✗": "bold red"}


def plan(config: PlanConfig) -> None:
    """Prints the plan, and the sweep or the trace that were asked for."""
    from cache_node.plan.find_shape import find_shape
    from cache_node.plan.plan import make_plan
    from kvmesh.cli.plan.advice import recommend
    from kvmesh.cli.plan.sweep import make_sweep
    from kvmesh.cli.plan.trace import plan_trace

    try:
        found = make_plan(find_shape(config.model), config.hardware(), config.node_config())
        sweep = make_sweep(found) if config.sweep else None
        trace = plan_trace(config.trace, found, config.concurrency) if config.trace else None
        recommended = recommend(found)
        if config.plot is not None:
            _draw(config.plot, found, sweep, trace)
    except ModuleNotFoundError as error:
        fail(f"this installation has no {error.name}: a plan needs `pip install 'kvmesh[node]'`")
    except (ValueError, OSError) as error:
        fail(str(error))
    if config.json:
        from kvmesh.cli.plan.as_json import as_json

        data = as_json(found, config.concurrency, recommended)
        more: dict[str, Any] = {
            "sweep": sweep and sweep.as_json(),
            "trace": trace and trace.as_json(),
        }
        typer.echo(json.dumps({**data, **more}))
        return
    from kvmesh.cli.plan.report import sections

    console = console_for_tables()
    console.print(f"[bold]{escape(found.shape.name)}[/]")
    for section in sections(found, config.concurrency, recommended):
        _show(console, section)
    if sweep is not None:
        _show_sweep(console, sweep)
    if trace is not None:
        _show_trace(console, found, trace)
    if config.plot is not None:
        console.print(f"plot: {escape(str(config.plot))}")


def _draw(path: Path, found: "Plan", sweep: "Sweep | None", trace: "TracePlan | None") -> None:
    """The trace where there is one, else the sweep."""
    from kvmesh.cli.plan.sweep import draw_sweep
    from kvmesh.cli.plan.trace import draw_trace

    try:
        if trace is not None:
            draw_trace(trace, path, f"{trace.requests:,} requests: what a pool misses")
        elif sweep is not None:
            draw_sweep(sweep, path, f"{found.shape.name}: requests at once")
    except ImportError:
        fail("plot: needs matplotlib: pip install 'kvmesh[load]'")


def _show(console: Console, section: "Section") -> None:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in section.pairs:
        table.add_row(f"  {escape(name)}", escape(value), style=MARKS.get(name[:1]))
    console.print(f"\n[bold]{section.title}[/]")
    console.print(table)


def _show_sweep(console: Console, sweep: "Sweep") -> None:
    table = Table(title="Requests at once")
    table.add_column("tokens", justify="right")
    for dtype in sweep.concurrency:
        table.add_column(dtype, justify="right")
    for place, length in enumerate(sweep.lengths):
        held = (f"{counts[place]:,}" for counts in sweep.concurrency.values())
        table.add_row(f"{length:,}", *held)
    console.print()
    console.print(table)


def _show_trace(console: Console, found: "Plan", trace: "TracePlan") -> None:
    from kvmesh.cli.plan.trace import FLAT
    from kvmesh.cli.plan.units import size

    curve, block = trace.curve, found.layout.bytes_per_block
    table = Table(title=f"What a pool hits of the prompts of {trace.requests:,} requests")
    for column in ("blocks", "memory", "hit tokens", "of the best"):
        table.add_column(column, justify="right")
    best = curve.hit_share(curve.distinct)
    for blocks in sorted({*trace.sizes, trace.flat, found.usable_blocks}):
        share = curve.hit_share(blocks)
        of_best = f"{share / best:.0%}" if best else "-"
        bold = "bold" if blocks in (trace.flat, found.usable_blocks) else None
        table.add_row(f"{blocks:,}", size(blocks * block), f"{share:.1%}", of_best, style=bold)
    console.print()
    console.print(table)
    console.print(
        f"Bold: the pool planned above, and where the curve is flat: {FLAT:.0%} of the best at "
        f"{trace.flat:,} blocks."
    )
    console.print(
        f"With {trace.running:,} blocks for requests that run: --num-blocks "
        f"{trace.recommended + 1} ({size((trace.recommended + 1) * block)})."
    )

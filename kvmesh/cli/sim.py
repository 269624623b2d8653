"""`kvmesh sim`: a fleet on a virtual clock."""

import json
import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.sim.config import SimConfig
from kvmesh.cli.errors import fail
from kvmesh.cli.hushed import hushed
from kvmesh.cli.tables import console_for_tables

if TYPE_CHECKING:
    from pathlib import Path

    from bench.sim.step_model import Profile

HELP = """
Simulate a fleet on a recorded trace: cache hits, latencies, goodput and balance of each policy.

Examples:

    kvmesh sim --trace mooncake_conversation.jsonl
    kvmesh sim --trace mooncake_conversation.jsonl --nodes 100 --requests 20000
    kvmesh sim --trace mooncake_conversation.jsonl --fail 60:node-3:30 --index-delay 0.5 --json
    kvmesh sim --fit mine.json

Router policy, admission and index, scheduler and block pool are the product's own; time is virtual
and steps take what a profile of measured constants says. The same seed gives the same report.
`kvmesh bench sim` holds it against a real fleet. Thousands of nodes can take half the time in large
pages of memory: PYTHONMALLOC=malloc GLIBC_TUNABLES=glibc.malloc.hugetlb=1 (see `make sim-large`).
"""


def sim(config: SimConfig) -> None:
    """Runs the simulation, or measures a profile."""
    if config.fit is not None:
        _fit(config.fit, as_json=config.as_json)
        return
    from bench.sim.run import run_simulation

    console = Console(stderr=True, highlight=False)
    try:
        with hushed():
            report = run_simulation(config, lambda policy: console.print(f"simulating {policy}"))
    except (OSError, ValueError) as error:
        fail(str(error))
    if config.as_json:
        typer.echo(json.dumps(report))
    else:
        _tell(report)
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds, gigabytes = used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / 1e9
    console.print(f"{seconds:.0f} s of CPU time, {gigabytes:.1f} GB", style="dim")


COLUMNS = ("TTFT p50", "p95", "p99", "good", "failed", "preempted", "max ÷ mean")


def _tell(report: dict[str, Any]) -> None:
    config, about = report["config"], report["profile"]["about"]
    size = f"{config['blocks']} blocks of {config['block_size']} tokens"
    title = f"{config['requests']} requests on {config['nodes']} nodes of {size}"
    table = Table("", title=title)
    for column in ("hit", *COLUMNS):
        table.add_column(column, justify="right")
    for each in report["policies"]:
        table.add_row(*_row(each))
    console = console_for_tables()
    console.print(table)
    for note in (
        _asked(report),
        "Seconds. Max ÷ mean: prompt tokens that nodes computed.",
        f"Step times: {'; '.join(f'{name}: {text}' for name, text in about.items())}",
        f"Approximated: {'. '.join(report['approximated'])}.",
    ):
        console.print(escape(note))


def _asked(report: dict[str, Any]) -> str:
    config, copies = report["config"], report["trace_copies"]
    pace = f"{report['requests_per_s']:.3g} requests a second, {copies} copies of the trace"
    good = f"first token in {config['slo_ttft']:g} s, then {config['slo_itl']:g} s a token"
    return f"{pace}, seed {config['seed']}. Good: {good}."


def _row(figures: dict[str, Any]) -> list[str]:
    ttft = figures["ttft_seconds"] or {}
    times: Sequence[str] = [_number(ttft.get(name), ".3g") for name in ("p50", "p95", "p99")]
    return [
        figures["policy"],
        _number(figures["hit_share"], ".1%"),
        *times,
        f"{figures['goodput']['share']:.1%}",
        str(sum(figures["failed"].values())),
        str(figures["preemptions"]),
        _number(figures["imbalance"], ".3f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _fit(out: "Path", *, as_json: bool) -> None:
    from bench.sim.default_fit import fit_default_model

    try:
        out.touch()  # before minutes of measuring
        profile = fit_default_model()
        out.write_text(f"{json.dumps(profile.as_json(), indent=2)}\n")
    except (OSError, ValueError) as error:
        fail(f"--fit: {error}")
    if as_json:
        typer.echo(json.dumps(profile.as_json()))
    else:
        _tell_profile(profile, out)


def _tell_profile(profile: "Profile", out: "Path") -> None:
    from dataclasses import asdict

    from kvmesh.cli.bench.report import Report, show

    rows = [[name, f"{value * 1e6:.4g}"] for name, value in asdict(profile.model).items()]
    notes = [f"{name}: {value}" for name, value in profile.about.items()]
    show(Report(title=str(out), columns=("", "µs"), rows=rows, data=profile.as_json(), notes=notes))

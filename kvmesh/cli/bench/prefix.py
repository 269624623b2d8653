"""`kvmesh bench prefix`: what prefix caching and prefix-aware routing are worth under load."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvmesh.cli.bench.own_fleet import INTERRUPTED
from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.figures import Goal
    from bench.load.prefix import Loads, Measure, Pair, Size


def prefix(
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Mooncake's conversation trace: compares routing on it as well.",
            exists=True,
            dir_okay=False,
            show_default="none",
        ),
    ] = None,
    part: Annotated[
        Literal["all", "caching", "routing"], typer.Option(help="routing needs a --trace.")
    ] = "all",
    quick: Annotated[bool, typer.Option(help="Less of everything: two minutes.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Directory for a report of each load.", show_default="none")
    ] = None,
    as_json: Json = False,
) -> None:
    """TTFT and throughput with prefix caching on and off; with a trace, prefix-aware routing beside
    round-robin.

    Examples:

        kvmesh bench prefix
        kvmesh bench prefix --trace mooncake_conversation.jsonl --out prefix-report

    Two nodes of the real model for each side, started anew, so that caches are empty. Caching: a
    prompt of 1,024 shared and 32 own tokens every two seconds for TTFT, then eight of them at once
    for throughput. Routing: a fiftieth of the trace's conversations at 45 times the speed and a
    64th of the lengths. With caching TTFT should be 0.3 of that without at most, throughput 1.5
    times at least; prefix-aware should be first in both median TTFT and hit tokens.
    """
    from bench.load.prefix import FULL, QUICK

    if part == "routing" and trace is None:
        raise typer.BadParameter("routing is compared on a --trace")
    tell(measured(QUICK if quick else FULL, trace, out=out, part=part), as_json=as_json)


def measured(size: "Size", trace: Path | None, *, out: Path | None, part: str = "all") -> Report:
    """The table of both comparisons; of the first alone without a trace."""
    from bench.load.prefix import compare_caching, compare_routing

    measure = _measure(out)
    sides: dict[str, Mapping[str, Any]] = {}
    goals: list[Goal] = []

    def take(names: tuple[str, str], found: "tuple[Pair, list[Goal]]") -> None:
        pair, made = found
        sides.update(zip(names, (pair.ours, pair.other), strict=True))
        goals.extend(made)

    try:
        if part != "routing":
            take(("caching on", "caching off"), compare_caching(measure, size))
        if trace is not None and part != "caching":
            take(("prefix-aware", "round-robin"), compare_routing(measure, size, trace))
    except (OSError, ValueError) as error:
        fail(str(error))
    return report(sides, goals)


def _measure(out: Path | None) -> "Measure":
    """Writes reports below `out`, if there is one."""

    def measure(loads: "Loads") -> Mapping[str, Any]:
        from bench.load.plan import make_plan
        from bench.load.report import write_report
        from bench.load.summary import summarise
        from kvmesh.cli.own_loads import run_on_own_fleet

        runs = run_on_own_fleet([(config, make_plan(config)) for config in loads.values()])
        if runs[-1].interrupted:
            raise typer.Exit(INTERRUPTED)
        summaries = {}
        for (name, config), run in zip(loads.items(), runs, strict=True):
            if out is None:
                summaries[name] = summarise(run)
            else:
                caching = "cached" if config.enable_prefix_caching else "uncached"
                where = out / f"{name}-{config.policy}-{caching}"
                summaries[name] = write_report(run, where)
        return summaries

    return measure


COLUMNS = {
    "TTFT p50": "TTFT p50",
    "TTFT p99": "p99",
    "ITL p50": "ITL p50",
    "answered": "answered",
    "cached prompt tokens": "cached",
    "of all prompt tokens": "of prompts",
}
"""Labels of measures, and how this table calls them."""


def report(sides: Mapping[str, Mapping[str, Any]], goals: "list[Goal]") -> Report:
    """The table."""
    from bench.figures import Goal
    from bench.load.measures import MEASURES

    measures = {measure.label: measure for measure in MEASURES}
    shown = [measures[label] for label in COLUMNS]
    rows, notes, lagging = [], [], []
    for side, loads in sides.items():
        for load, summary in loads.items():
            name = side if len(loads) == 1 else f"{side}, {load}"
            rows.append([name, *(each.show(each.of(summary)) for each in shown)])
            own = [Goal.from_json(each) for each in summary["generator"]["goals"]]
            lagging += [goal for goal in own if not goal.met]
            failed = summary["requests"]["failed"]
            notes += [f"{name}: INVALID, {reason}" for reason in summary["invalid"]]
            notes += [f"{name}: {failed} requests failed"] if failed else []
    return Report(
        title="What cached prefixes are worth under load",
        columns=("", *COLUMNS.values()),
        rows=rows,
        data={"loads": sides},
        goals=[*goals, *lagging],
        notes=["light: open loop, one every 2 s. heavy: closed loop, 8 at once.", *notes],
    )

"""`kvmesh load`: a load test, and two of them beside each other."""

from asyncio import CancelledError
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import typer

from bench.load.config import LoadConfig
from kvmesh.cli.bench.own_fleet import INTERRUPTED
from kvmesh.cli.bench.report import Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.load.plan import Plan
    from bench.load.run import Run

LOADS = Path("kvmesh-load")
HELP = """
Send requests at planned times and tell what became of them: latencies, goodput, cache hits.

Examples:

    kvmesh load
    kvmesh load --target 127.0.0.1:50051 --workload chat --rate 4 --requests 400
    kvmesh load --target http://127.0.0.1:8000/v1 --workload rag --arrivals bursty
    kvmesh load --trace mooncake_conversation.jsonl --speed 2 --length-scale 0.03125
    kvmesh load --compare before/result.json after/result.json

An open loop: requests go out when they are due, however slow the answers are, and latencies count
from then. Without --target a fleet is started for the time of the load. Ctrl-C ends the load
early; its report is still written. Exit code 2 says that the result is invalid, because the
generator itself did not keep up.
"""


def load(config: LoadConfig) -> None:
    """Runs the load, or compares two."""
    if config.compare is not None:
        _compare(*config.compare)
        return
    from bench.load.plan import make_plan
    from bench.load.report import write_report

    try:
        _check_out(config.out or LOADS)
        plan = make_plan(config)
        run = _run(config, plan)
    except (OSError, ValueError) as error:  # ConnectionError is an OSError
        fail(str(error))
    except CancelledError:  # before the first request: there is nothing to tell
        raise typer.Exit(INTERRUPTED) from None
    directory = config.out or LOADS / datetime.now().strftime("%Y%m%d-%H%M%S")  # noqa: DTZ005  # for whoever looks for it
    try:
        summary = write_report(run, directory)
    except OSError as error:
        fail(f"the report could not be written: {error}")
    typer.echo(f"report: {directory / 'report.html'}")
    if run.interrupted:
        with suppress(typer.Exit):  # whatever it says, the load was not the one asked for
            _tell(summary)
        raise typer.Exit(INTERRUPTED)
    _tell(summary)


def _check_out(directory: Path) -> None:
    """Ends the command, before a load whose report could not be written."""
    there = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    try:
        with TemporaryFile(dir=there):
            pass
    except OSError as error:
        fail(f"--out {directory}: cannot write there: {error.strerror}")


def _run(config: LoadConfig, plan: "Plan") -> "Run":
    from bench.load.run import run_load, run_until_interrupted
    from kvmesh.cli.load_progress import LoadProgress
    from kvmesh.cli.own_loads import run_on_own_fleet

    if config.target is None:
        return run_on_own_fleet([(config, plan)])[0]
    fleet = config.fleet if config.over_http else config.target
    with LoadProgress(config.name) as progress:
        return run_until_interrupted(run_load(config, plan, config.target, fleet, progress))


def _tell(summary: dict[str, Any]) -> None:
    from bench.figures import Goal
    from bench.load.measures import MEASURES, caveats, counted_from, errors_of

    rows = [[measure.label, measure.show(measure.of(summary))] for measure in MEASURES]
    if summary["nodes"] is not None:
        for name, node in summary["nodes"]["by_name"].items():
            share = node["cached_tokens"] / max(1, node["prompt_tokens"])
            rows.append([name, f"{node['requests']} requests, {share:.0%} cached"])
    rows += [[f"failed: {name}", f"{count} ({said})"] for name, count, said in errors_of(summary)]
    tell(
        Report(
            title=f"{summary['name']}: {summary['seconds']:.1f} s",
            columns=("", "value"),
            rows=rows,
            data=summary,
            goals=[Goal.from_json(each) for each in summary["generator"]["goals"]],
            notes=[*caveats(summary), counted_from(summary)],
        ),
        as_json=False,
    )


def _compare(first: Path, second: Path) -> None:
    from bench.load.compare import compared_rows, comparison_notes, read_summary

    try:
        a, b = read_summary(first), read_summary(second)
        rows, notes = compared_rows(a, b), comparison_notes(a, b)
        title = f"a: {a['name']} · b: {b['name']}"
    except (OSError, ValueError) as error:
        fail(str(error))
    except (AttributeError, KeyError, TypeError) as error:
        fail(f"{first} and {second} are not both as a load wrote them: {error!r}")
    tell(
        Report(
            title=title,
            columns=("", "a", "b", "b ÷ a"),
            rows=rows,
            data={"a": a, "b": b},
            notes=[f"a: {first}", f"b: {second}", *notes],
        ),
        as_json=False,
    )

"""`kvmesh bench all`: every comparison that matters to a choice, in one run."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, command_line, machine_line, show, tell


@dataclass(frozen=True, slots=True)
class Settings:
    quick: bool
    trace: Path | None
    peers: Path | None


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    run: Callable[[Settings], Report]
    wanted: Callable[[Settings], bool] = lambda _settings: True


def suite(
    quick: Annotated[bool, typer.Option(help="Less of everything: three minutes.")] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Mooncake's conversation trace, for routing.",
            exists=True,
            dir_okay=False,
            show_default="none",
        ),
    ] = None,
    peers: Annotated[
        Path | None,
        typer.Option(
            help="Directory with vLLM, transformers and their model: kvmesh beside them, too.",
            exists=True,
            file_okay=False,
            show_default="none",
        ),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(help="Directory for plots.", show_default="none")
    ] = None,
    as_json: Json = False,
) -> None:
    """All comparisons: memory, other ways to serve, caching, routing, paging, quantised KV, and
    other engines.

    Examples:

        kvmesh bench all --quick
        kvmesh bench all --trace mooncake_conversation.jsonl --plots docs/benchmarks

    Each part is a command of its own (`memory`, `baselines`, `prefix`, `paging`, `quant`, and with
    --peers `engine`), whose table is shown when it is done; the last table has all goals.
    """
    settings = Settings(quick, trace, peers)
    reports: dict[str, Report] = {}
    took: dict[str, float] = {}
    for part in PARTS:
        if not part.wanted(settings):
            continue
        print(f"{part.name} ...", file=sys.stderr, flush=True)
        started = time.monotonic()
        reports[part.name] = part.run(settings)
        took[part.name] = time.monotonic() - started
        if not as_json:
            show(reports[part.name])
    notes = [] if plots is None else _draw(reports, plots)
    tell(_summary(reports, took, notes), as_json=as_json)


def _memory(_settings: Settings) -> Report:
    from bench.memory import measure_waste
    from kvmesh.cli.bench import memory

    return memory.report(measure_waste(1000, 0), 1000, 0)


def _baselines(settings: Settings) -> Report:
    from bench.baselines.compare import FULL, QUICK, compare_baselines
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model
    from kvmesh.cli.bench import baselines

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    amount = QUICK if settings.quick else FULL
    return baselines.report(compare_baselines(directory, amount, lambda _text: None))


def _prefix(settings: Settings) -> Report:
    from bench.load.prefix import FULL, QUICK
    from kvmesh.cli.bench import prefix

    size = QUICK if settings.quick else FULL
    return prefix.measured(size, settings.trace, out=None)


def _paging(settings: Settings) -> Report:
    from bench.paging import measure_paging
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model
    from kvmesh.cli.bench import paging

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    return paging.report(measure_paging(directory, 1 if settings.quick else 5))


def _quant(_settings: Settings) -> Report:
    from bench.quant import QUICK, licence_text, measure_quant
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model
    from kvmesh.cli.bench import quant

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    return quant.report(measure_quant(directory, licence_text(), QUICK, lambda _text: None))


def _engine(settings: Settings) -> Report:
    from kvmesh.cli.bench import engine

    return engine.measured(["vllm", "hf"], settings.peers, [], 1)


PARTS = (
    Part("memory", _memory),
    Part("baselines", _baselines),
    Part("prefix", _prefix),
    Part("paging", _paging),
    Part("quant", _quant, lambda settings: not settings.quick),
    Part("engine", _engine, lambda settings: settings.peers is not None),
)


def _draw(reports: dict[str, Report], directory: Path) -> list[str]:
    from bench.summary_plots import draw_summary

    data = {name: report.data for name, report in reports.items()}
    try:
        made = draw_summary(data, directory, f"{machine_line()} · {command_line()}")
    except ImportError:
        return ["No plots: they need matplotlib, pip install 'kvmesh[load]'."]
    return [f"plot: {path}" for path in made]


def _summary(reports: dict[str, Report], took: dict[str, float], notes: list[str]) -> Report:
    rows = [
        [name, goal.name, f"{goal.value:.3g}", _limit(goal.limit, at_most=goal.at_most)]
        for name, report in reports.items()
        for goal in report.goals
    ]
    times = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items())
    return Report(
        title="All comparisons",
        columns=("part", "figure", "value", "goal"),
        rows=rows,
        data={name: report.data for name, report in reports.items()},
        goals=[goal for report in reports.values() for goal in report.goals],
        notes=[*notes, f"It took {times}."],
    )


def _limit(limit: float, *, at_most: bool) -> str:
    return f"{'≤' if at_most else '≥'} {limit:.3g}"

"""`kvmesh bench paging`: what block sizes and preemption cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.paging import Paging


def paging(
    repetitions: Annotated[int, typer.Option(min=1, help="Of each figure, in turns.")] = 5,
    as_json: Json = False,
) -> None:
    """A decode step by block size, and a preempted request's way back: swapped or computed again.

    Examples:

        kvmesh bench paging
        kvmesh bench paging --repetitions 1 --json

    The default model on one compute thread. Steps are of 8 sequences of 512 tokens, and all block
    sizes take turns. What a block size wastes: `kvmesh bench memory`.
    """
    from bench.paging import measure_paging
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    tell(report(measure_paging(directory, repetitions)), as_json=as_json)


def report(found: "Paging") -> Report:
    """The table."""
    from dataclasses import asdict

    from bench.paging import BATCH, CONTEXT

    best = min(found.decode.values())
    rows = [
        [f"decode step, blocks of {size}", f"{seconds * 1e3:.1f} ms", f"{seconds / best:.2f}×"]
        for size, seconds in found.decode.items()
    ]
    for way in found.ways_back:
        ratio = f"{way.swapped / way.computed:.2f}×"
        rows.append(
            [f"{way.tokens} tokens swapped down and up", f"{way.swapped * 1e3:.1f} ms", ratio]
        )
        rows.append(
            [f"{way.tokens} tokens computed again", f"{way.computed * 1e3:.1f} ms", "1.00×"]
        )
    return Report(
        title=f"Paging: steps of {BATCH} × {CONTEXT}, and the way back from preemption",
        columns=("", "time", "of the best, of computing"),
        rows=rows,
        data=asdict(found),
        goals=found.goals,
        notes=["Steps in CPU time, ways back as they pass. Medians."],
    )

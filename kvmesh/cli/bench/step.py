"""`kvmesh bench step`: what the engine costs around the model."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.step import StepCost


def step(
    repetitions: Annotated[int, typer.Option(min=1, help="Batches to measure.")] = 3,
    as_json: Json = False,
) -> None:
    """What scheduling, booking and text cost in a decode step of 32 requests.

    Examples:

        kvmesh bench step
        kvmesh bench step --repetitions 10 --json

    First with the default model: its share of a step should be under 5 %. Then without a model,
    after a thousand and a hundred thousand requests and over pools of 2,500 and 200,000 blocks:
    nothing should grow with either.
    """
    from bench.step import measure_step
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    tell(_report(measure_step(directory, repetitions)), as_json=as_json)


def _report(cost: "StepCost") -> Report:
    from dataclasses import asdict

    rows = [
        [f"model, {a.what}", f"{a.around * 1e3:.2f}", f"{a.model * 1e3:.2f}", f"{a.share:.1%}"]
        for a in cost.shares
    ]
    rows += [[f"none, {a.what}", f"{a.around * 1e3:.2f}", "", ""] for a in cost.growth]
    return Report(
        title="A decode step of 32 requests",
        columns=("", "around ms", "model ms", "share"),
        rows=rows,
        data=asdict(cost),
        goals=cost.goals,
        notes=[
            "Medians. Around: all that the engine's thread does between two calls of the model."
        ],
    )

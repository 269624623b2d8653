"""`kvmesh bench scrape`: what Prometheus costs a node."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.scrape import ScrapeCost


def scrape(
    repetitions: Annotated[int, typer.Option(min=1, help="Turns of each kind.")] = 3,
    as_json: Json = False,
) -> None:
    """What it costs a node to be scraped by Prometheus while 32 streams decode.

    Examples:

        kvmesh bench scrape
        kvmesh bench scrape --repetitions 10 --json

    Turns without a scrape, with one every 5 s and with one every 0.1 s follow each other. Scrapes
    at Prometheus' usual pace should cost less than 1 % of a step.
    """
    from bench.scrape import measure_scrape
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    tell(_report(measure_scrape(directory, repetitions)), as_json=as_json)


def _report(cost: "ScrapeCost") -> Report:
    from dataclasses import asdict

    from bench.scrape import OFTEN, USUAL

    turns = (
        ("never", cost.never, None),
        (f"every {USUAL:g} s", cost.usual, cost.usual_share),
        (f"every {OFTEN:g} s", cost.often, cost.often_share),
    )
    return Report(
        title="A decode step of 32 streams, scraped",
        columns=("", "CPU ms", "least", "most", "more by"),
        rows=[
            [
                name,
                *(f"{value * 1e3:.2f}" for value in (steps.median, steps.least, steps.most)),
                "" if share is None else f"{share:+.1%}",
            ]
            for name, steps, share in turns
        ],
        data={**asdict(cost), "usual_share": cost.usual_share, "often_share": cost.often_share},
        goals=cost.goals,
        notes=[
            "CPU time of the node. Shares are medians over turns that follow each other.",
            f"A scrape has {cost.size:,} bytes and takes {cost.scrape.median * 1e3:.1f} ms.",
        ],
    )

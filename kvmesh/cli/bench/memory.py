"""`kvmesh bench memory`: KV memory that holds no token."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.memory import Waste


def memory(
    requests: Annotated[int, typer.Option(min=1, help="Length of the mix.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the mix.")] = 0,
    as_json: Json = False,
) -> None:
    """KV memory wasted: allocated, but not holding a token, beside contiguous preallocation.

    Examples:

        kvmesh bench memory
        kvmesh bench memory --requests 5000 --seed 7

    The real scheduler and memory on a virtual clock, so the figures are the same everywhere. A mix
    of requests with 400 tokens in the mean waits for a pool of 32,768 tokens. Under 4 % should be
    wasted at blocks of 16.
    """
    from bench.memory import measure_waste

    tell(report(measure_waste(requests, seed), requests, seed), as_json=as_json)


def report(wastes: "list[Waste]", requests: int, seed: int) -> Report:
    """The table."""
    from dataclasses import asdict

    from bench.figures import Goal
    from bench.memory import GOAL, GOAL_BLOCK_SIZE, MAX_MODEL_LEN, POOL_TOKENS

    target = next(waste for waste in wastes if waste.block_size == GOAL_BLOCK_SIZE)
    return Report(
        title=f"KV memory wasted, {requests} requests of 400 tokens in the mean",
        columns=("blocks of", "wasted", "of it, prefill to come", "running", "preemptions"),
        rows=[_row(waste) for waste in wastes],
        data={"requests": requests, "seed": seed, "results": [asdict(waste) for waste in wastes]},
        goals=[Goal(f"share wasted at blocks of {GOAL_BLOCK_SIZE}", target.wasted, GOAL)],
        notes=[
            f"Log-normal lengths: prompts of 240, outputs of 160 tokens in the mean; seed {seed}.",
            f"At most {MAX_MODEL_LEN} tokens a request, a pool of {POOL_TOKENS}. Means over time.",
            "A block holds what finished steps have written to it.",
        ],
    )


def _row(waste: "Waste") -> list[str]:
    name = f"{waste.block_size} (contiguous)" if waste.contiguous else str(waste.block_size)
    shares = (f"{share:.2%}" for share in (waste.wasted, waste.unfilled))
    return [name, *shares, f"{waste.running:.1f}", str(waste.preemptions)]

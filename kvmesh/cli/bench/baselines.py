"""`kvmesh bench baselines`: other ways to serve the same requests."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell

if TYPE_CHECKING:
    from bench.baselines.compare import Comparison


def baselines(
    quick: Annotated[bool, typer.Option(help="Half as much.")] = False,
    as_json: Json = False,
) -> None:
    """No KV cache, contiguous memory with static batches, paged memory, whole prompts cached, and
    kvmesh, beside each other.

    Examples:

        kvmesh bench baselines --quick
        kvmesh bench baselines --json

    The same model, kernels, memory (4,096 tokens) and requests for all, one compute thread, no
    network: 16 at once with 256 shared and 16 own tokens, every fourth one a repetition. The
    traditional way reserves 1,024 tokens a request. Round-robin over nodes is in `kvmesh bench
    prefix`; other servers are measured by `kvmesh load --target`.
    """
    from bench.baselines.compare import FULL, QUICK, compare_baselines
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    tell(report(compare_baselines(directory, QUICK if quick else FULL, _say)), as_json=as_json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(found: "Comparison") -> Report:
    """The table."""
    from statistics import median

    rows = [
        [
            name,
            f"{each.seconds:.1f}",
            f"{each.output_rate:.1f}",
            f"{1e3 * median(each.first):,.0f}",
            f"{each.computed:,}",
            str(each.most),
        ]
        for name, each in found.served.items()
    ]
    growth = found.growth
    answers = ", ".join(
        f"{length} tokens {without:.1f} and {cached:.2f} s"
        for length, without, cached in zip(
            growth.lengths, growth.without, growth.cached, strict=True
        )
    )
    return Report(
        title="The same requests, served in other ways",
        columns=("", "s", "output tok/s", "TTFT p50 ms", "tokens computed", "at once"),
        rows=rows,
        data=found.as_json(),
        goals=found.goals,
        notes=[
            "All requests come at once; TTFT counts from then. At once: the most in one step.",
            f"One answer behind 16 tokens, without a KV cache and with one, CPU time: {answers}.",
        ],
    )

"""`kvmesh bench kernels`: the CPU's kernels beside torch and the speed of memory."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.kernels import KernelFigures


def kernels(
    repetitions: Annotated[int, typer.Option(min=1, help="Of every measurement.")] = 9,
    as_json: Json = False,
) -> None:
    """Attention, linears and whole decode steps on one thread, as a share of the speed of memory.

    Examples:

        kvmesh bench kernels
        kvmesh bench kernels --repetitions 31 --json

    Shapes are those of SmolLM2-135M in bfloat16. Beside each kernel: a linear read of the same
    bytes, and what torch needs (for each sequence, gather and fused attention; packed oneDNN
    linears). The fallback is ours for where there is no compiler, which gathers a batch at once.
    """
    from bench.kernels import measure_kernels
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    try:
        figures = measure_kernels(directory, repetitions)
    except RuntimeError as error:
        fail(str(error))
    tell(_report(figures), as_json=as_json)


def _report(result: "KernelFigures") -> Report:
    from dataclasses import asdict

    rows = [
        [
            figure.what,
            f"{figure.seconds * 1e6:,.0f}",
            f"{figure.of_read:.0%}",
            "" if figure.torch_seconds is None else f"{figure.torch_seconds * 1e6:,.0f}",
            *(
                "" if ratio is None else f"{ratio:.1f}×"
                for ratio in (figure.beside_torch, figure.beside_fallback)
            ),
        ]
        for figure in result.figures
    ]
    return Report(
        title="Kernels on one thread",
        columns=("", "µs", "of a read", "torch µs", "÷ torch", "÷ fallback"),
        rows=rows,
        data={"figures": [asdict(figure) for figure in result.figures]},
        goals=result.goals,
        notes=["CPU time of the thread. Ratios are medians of pairs measured one after the other."],
    )

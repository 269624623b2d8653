"""`kvmesh bench kernels`: kernels beside torch and the speed of memory, on the CPU or a GPU."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.gpu_kernels import GpuFigure, GpuKernelFigures
    from bench.kernels import KernelFigures


def kernels(
    repetitions: Annotated[int, typer.Option(min=1, help="Of every measurement.")] = 9,
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="auto is cuda where torch sees a GPU.")
    ] = "auto",
    as_json: Json = False,
) -> None:
    """Kernels as a share of the speed of memory.

    Examples:

        kvmesh bench kernels
        kvmesh bench kernels --repetitions 31 --json

    On the CPU, attention, linears and whole decode steps on one thread, shapes those of
    SmolLM2-135M in bfloat16. Beside each kernel: a linear read of the same bytes, and what torch
    needs (for each sequence, gather and fused attention; packed oneDNN linears). The fallback is
    ours for where there is no compiler, which gathers a batch at once.

    On a GPU, the Triton kernels at shapes of Llama 3 8B, beside a copy of the card's memory, torch
    over contiguous keys and values, and FlashInfer, flash-attn and vLLM where they are installed.
    """
    from cache_node.load_executor import choose_device

    try:
        chosen = choose_device(device)
        report = _on_cpu(repetitions) if chosen.type == "cpu" else _on_gpu(repetitions)
    except (RuntimeError, ValueError) as error:
        fail(str(error))
    tell(report, as_json=as_json)


def _on_cpu(repetitions: int) -> Report:
    from bench.kernels import measure_kernels
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    return _report(measure_kernels(directory, repetitions))


def _on_gpu(repetitions: int) -> Report:
    import torch

    from bench.gpu_kernels import CudaTimer, measure_gpu_kernels

    device = torch.device("cuda", torch.cuda.current_device())
    result = measure_gpu_kernels(device, CudaTimer(repetitions))
    return gpu_report(result, torch.cuda.get_device_name(device))


def gpu_report(result: "GpuKernelFigures", card: str) -> Report:
    """The table of what was measured on `card`."""
    speed = result.copy_bytes_per_second
    names = list(dict.fromkeys(name for figure in result.figures for name in figure.rivals))
    rows = [
        [
            figure.what,
            f"{figure.seconds * 1e6:,.1f}",
            f"{figure.size / figure.seconds / 1e9:,.0f}",
            f"{figure.of_copy(speed):.0%}",
            *(_rival(figure, name) for name in names),
        ]
        for figure in result.figures
    ]
    failed = {
        f"{name}: {said}"
        for figure in result.figures
        for name, said in figure.rivals.items()
        if isinstance(said, str)
    }
    data = [
        {
            "what": figure.what,
            "seconds": figure.seconds,
            "bytes": figure.size,
            "of_copy": figure.of_copy(speed),
            "rivals": dict(figure.rivals),
        }
        for figure in result.figures
    ]
    return Report(
        title=f"Triton kernels on {card}",
        columns=("", "µs", "GB/s", "of a copy", *(f"{name} µs" for name in names)),
        rows=rows,
        data={"card": card, "copy_bytes_per_second": speed, "figures": data},
        goals=result.goals,
        notes=[f"A copy moves {speed / 1e9:,.0f} GB/s, read and written.", *sorted(failed)],
    )


def _rival(figure: "GpuFigure", name: str) -> str:
    seconds = figure.rivals.get(name)
    if seconds is None:
        return ""
    return "failed" if isinstance(seconds, str) else f"{seconds * 1e6:,.1f}"


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

"""`kvmesh bench quant`: what a quantised KV cache costs and brings."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvmesh.cli.bench.report import Json, Report, tell
from kvmesh.cli.errors import fail

if TYPE_CHECKING:
    from bench.quant import QuantResult


def quant(
    quick: Annotated[bool, typer.Option(help="A fifth of the text: under three minutes.")] = False,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Text to read.",
            exists=True,
            dir_okay=False,
            show_default="the licences that Debian ships",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw perplexity over capacity into this PNG.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Perplexity, greedy agreement, needles, capacity and speed of each KV cache dtype.

    Examples:

        kvmesh bench quant --quick
        kvmesh bench quant --text ./book.txt --plot quant.png

    SmolLM2-135M in bfloat16 on one thread. Everything is read back through the paged pool, in the
    same windows for all dtypes: the change of perplexity is that of pairs.
    """
    from bench.quant import FULL, QUICK, licence_text, measure_quant
    from cache_node.config import DEFAULT_MODEL
    from cache_node.model.source import find_model

    directory = find_model(DEFAULT_MODEL, None, lambda _stage, _fraction: None)
    try:
        words = licence_text() if text is None else text.read_text(errors="replace")
        result = measure_quant(directory, words, QUICK if quick else FULL, _say)
    except (OSError, ValueError) as error:
        fail(str(error))
    if plot is not None:
        _draw(result, plot)
    tell(report(result), as_json=as_json)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(result: "QuantResult") -> Report:
    """The table."""
    from dataclasses import asdict

    rows = [
        [
            row.dtype,
            f"{row.perplexity:.3f}",
            "" if row.dtype == "auto" else f"{row.change.value:+.2%}",
            "" if row.dtype == "auto" else f"{row.change.low:+.2%} … {row.change.high:+.2%}",
            f"{row.agreement:.0%}",
            f"{row.needles} of {result.needles}",
            f"{row.blocks:,}",
            f"{row.capacity:.2f}×",
            f"{row.decode_seconds * 1e3:.1f}",
            f"{row.decode_ratio:.2f}×",
        ]
        for row in result.rows
    ]
    return Report(
        title=f"KV cache dtypes over {result.tokens:,} tokens",
        columns=(
            "", "perplexity", "change", "95 %", "greedy", "needles", "blocks in 1 GiB",
            "capacity", "decode ms", "÷ auto",
        ),
        rows=rows,
        data={"tokens": result.tokens, "rows": [asdict(row) for row in result.rows]},
        goals=[goal for row in result.rows for goal in row.goals],
        notes=[
            "Greedy: share of an answer's tokens before the first that differs from auto's.",
            "Decode: CPU time of a step of 8 sequences of 1,024 tokens, dtypes in turns.",
        ],
    )  # fmt: skip


def _draw(result: "QuantResult", path: Path) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        fail("--plot needs matplotlib: pip install 'kvmesh[bench]'")
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for row in result.rows:
        errors = [[row.change.value - row.change.low], [row.change.high - row.change.value]]
        scaled = [[100 * each[0]] for each in errors]
        axes.errorbar(row.capacity, 100 * row.change.value, yerr=scaled, fmt="o", capsize=4)
        axes.annotate(
            row.dtype, (row.capacity, 100 * row.change.value), xytext=(8, 4),
            textcoords="offset points",
        )  # fmt: skip
    axes.margins(x=0.12, y=0.1)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(
        xlabel="tokens in the same bytes, over auto",
        ylabel="perplexity over auto, %",
        title=f"SmolLM2-135M over {result.tokens:,} tokens",
    )
    figure.savefig(path, dpi=150)

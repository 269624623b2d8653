"""Requests at once, over lengths and types of the KV."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cache_node.config import KV_CACHE_DTYPES
from cache_node.plan.plan import Plan, make_plan

SHORTEST = 1024  # tokens
DTYPES = ("bfloat16", "float32", *KV_CACHE_DTYPES[1:])


@dataclass(frozen=True, slots=True)
class Sweep:
    """`concurrency[dtype][i]` requests of `lengths[i]` tokens fit at once."""

    lengths: tuple[int, ...]
    concurrency: dict[str, tuple[int, ...]]

    def as_json(self) -> dict[str, Any]:
        held = {dtype: list(counts) for dtype, counts in self.concurrency.items()}
        return {"lengths": list(self.lengths), "max_concurrency": held}


def make_sweep(plan: Plan) -> Sweep:
    """Lengths double up to the longest of the plan. The first dtype is that of the weights."""
    lengths = tuple(_lengths(plan.max_model_len))
    found: dict[str, tuple[int, ...]] = {}
    for dtype in KV_CACHE_DTYPES:
        config = replace(plan.config, kv_cache_dtype=dtype)
        try:
            other = make_plan(plan.shape, plan.hardware, config)
        except ValueError:  # int4, where a head has an odd number of elements
            continue
        found[other.layout.dtype] = tuple(other.concurrency(length) for length in lengths)
    return Sweep(lengths, found)


def _lengths(longest: int) -> list[int]:
    """Powers of 2 from SHORTEST on, and the longest itself."""
    lengths, length = [], SHORTEST
    while length < longest:
        lengths.append(length)
        length *= 2
    return [*lengths, longest]


def draw_sweep(sweep: Sweep, path: Path, title: str) -> None:
    """As PNG. Raises ImportError without matplotlib."""
    from bench.plotting import COLOURS, headless_pyplot, save, style

    plt = headless_pyplot()
    with plt.rc_context(style()):
        figure, ax = plt.subplots(figsize=(8, 4.4))
        for colour, (dtype, held) in zip(COLOURS, sweep.concurrency.items(), strict=False):
            points = [(n, c) for n, c in zip(sweep.lengths, held, strict=True) if c]
            ax.plot(*zip(*points, strict=True), "o-", color=colour, label=dtype, linewidth=2)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(sweep.lengths, [f"{length:,}" for length in sweep.lengths])
        ax.set(xlabel="tokens of each request", ylabel="requests at once")
        ax.legend()
        save(figure, path, title)

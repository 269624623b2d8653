"""The plots of `kvmesh bench all`. They need matplotlib."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.plotting import COLOURS, GREY, headless_pyplot, save, style

Data = Mapping[str, Any]


def draw_summary(data: Mapping[str, Data], directory: Path, footer: str) -> list[Path]:
    """`data` is that of the parts' reports, by part. Raises ImportError without matplotlib."""
    plt = headless_pyplot()
    directory.mkdir(parents=True, exist_ok=True)
    made = []
    with plt.rc_context(style()):
        for part, name, title, plot in PLOTS:
            if part in data and (figure := plot(plt, data[part])) is not None:
                made.append(directory / f"{name}.png")
                save(figure, made[-1], title, footer)
    return made


def _growth(plt: Any, data: Data) -> Any:
    growth = data["growth"]
    figure, ax = plt.subplots(figsize=(8, 4.2))
    for key, label, colour in (
        ("seconds_without_cache", "no KV cache", COLOURS[3]),
        ("seconds_with_cache", "KV cache", COLOURS[0]),
    ):
        ax.plot(growth["output_tokens"], growth[key], "o-", color=colour, label=label, linewidth=2)
    ax.set(xlabel="tokens of the answer, behind 16 of prompt", ylabel="seconds of CPU time")
    ax.set_xticks(growth["output_tokens"])
    ax.set_xlim(left=0)
    ax.set_ylim(bottom=0)
    ax.legend(loc="upper left")
    return figure


def _ways(plt: Any, data: Data) -> Any:
    ways = data["ways"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
    for ax, key, scale, label in (
        (axes[0], "output_tokens_per_s", 1, "output tokens/s"),
        (axes[1], "ttft_p50_s", 1e3, "median TTFT, ms"),
    ):
        _bars(ax, list(ways), [each[key] * scale for each in ways.values()], label)
    axes[0].invert_yaxis()
    return figure


def _memory(plt: Any, data: Data) -> Any:
    results = data["results"]
    names = [f"{each['block_size']}" for each in results[:-1]] + ["contiguous"]
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True)
    _bars(axes[0], names, [100 * each["wasted"] for each in results], "% of KV memory wasted")
    _bars(axes[1], names, [each["running"] for each in results], "requests at once, equal memory")
    axes[0].set_ylabel("blocks of so many tokens")
    axes[0].invert_yaxis()
    return figure


def _prefix(plt: Any, data: Data) -> Any:
    loads = data["loads"]
    panels = [
        ("light", ("caching on", "caching off"), "TTFT p50 in ms, one request every 2 s", _ttft),
        ("heavy", ("caching on", "caching off"), "requests/s, 8 at once", _rate),
        ("trace", ("prefix-aware", "round-robin"), "TTFT p50 in ms, conversation trace", _ttft),
    ]
    shown = [panel for panel in panels if all(panel[0] in loads.get(s, {}) for s in panel[1])]
    if not shown:
        return None
    figure, axes = plt.subplots(1, len(shown), figsize=(3.6 * len(shown), 2.6), squeeze=False)
    for ax, (load, sides, label, value) in zip(axes[0], shown, strict=True):
        _bars(ax, sides, [value(loads[side][load]) for side in sides], label)
        ax.invert_yaxis()
    return figure


def _paging(plt: Any, data: Data) -> Any:
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4))
    sizes = [str(size) for size in data["decode"]]
    _bars(axes[0], sizes, [1e3 * each for each in data["decode"].values()], "CPU ms of a step")
    axes[0].set_ylabel("blocks of so many tokens")
    axes[0].invert_yaxis()
    tokens = [each["tokens"] for each in data["ways_back"]]
    for key, label, colour in (
        ("computed", "computed again", COLOURS[3]),
        ("swapped", "swapped", COLOURS[0]),
    ):
        times = [1e3 * each[key] for each in data["ways_back"]]
        axes[1].plot(tokens, times, "o-", color=colour, label=label, linewidth=2)
    axes[1].set(xlabel="tokens of a preempted request", ylabel="ms to come back", yscale="log")
    axes[1].set_xticks(tokens)
    axes[1].legend(loc="center right")
    return figure


def _ttft(summary: Data) -> float:
    return 1e3 * float((summary["latency"]["ttft"] or {"p50": 0.0})["p50"])


def _rate(summary: Data) -> float:
    return float(summary["throughput"]["requests_per_s"])


def _bars(ax: Any, names: Sequence[str], values: Sequence[float], label: str) -> None:
    bars = ax.barh(names, values, color=COLOURS[0], height=0.62)
    ax.bar_label(bars, labels=[_short(each) for each in values], padding=3, color=GREY)
    ax.set(xlabel=label)
    ax.margins(x=0.16)
    ax.grid(axis="y", visible=False)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


PLOTS: tuple[tuple[str, str, str, Callable[[Any, Data], Any]], ...] = (
    ("baselines", "growth", "What an answer costs as it grows", _growth),
    ("baselines", "baselines", "Requests with a shared prefix, served in other ways", _ways),
    ("memory", "memory", "KV memory by block size", _memory),
    ("paging", "paging", "Block sizes, and the way back from preemption", _paging),
    ("prefix", "prefix", "What cached prefixes are worth under load", _prefix),
)

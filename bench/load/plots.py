"""The plots of a report. They need matplotlib."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.load.measures import Summary
from bench.plotting import COLOURS, GREY, headless_pyplot, save, style

LATENCY_NAMES = {"ttft": "time to first token", "itl": "between two tokens", "e2e": "end to end"}
MOST_NODES = 8  # with a line each

Plot = Callable[[Summary], Any]


def draw_plots(summary: Summary, directory: Path) -> list[Path]:
    """PNGs, in the order in which they are read. Raises ImportError without matplotlib."""
    plt = headless_pyplot()
    made = []
    with plt.rc_context(style()):
        for name, title, plot in PLOTS:
            figure = plot(summary)
            if figure is not None:
                made.append(directory / f"{name}.png")
                save(figure, made[-1], f"{title}: {summary['name']}")
    return made


def _latencies(summary: Summary) -> Any:
    from matplotlib import pyplot as plt

    cdf, slo = summary["cdf"], summary["goodput"]["slo"]
    names = [name for name in LATENCY_NAMES if cdf[name]]
    if not names:
        return None
    figure, axes = plt.subplots(1, len(names), figsize=(10, 3.6), sharey=True, squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        values = [max(1e-2, 1e3 * each) for each in cdf[name]]
        shares = [100 * place / (len(values) - 1 or 1) for place in range(len(values))]
        ax.plot(values, shares, color=COLOURS[0], linewidth=2)
        ax.set(xlabel="ms", title=LATENCY_NAMES[name], ylim=(0, 101))
        ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        if values[-1] > 20 * values[0]:
            _logarithmic(ax, values)
        for share, dashes in (("p50", ":"), ("p99", "--")):
            _mark(ax, 1e3 * summary["latency"][name][share], dashes, GREY, share)
        if name != "itl":  # that of the SLO is a mean
            _mark_slo(ax, slo[name], values[-1])
        ax.legend(loc="best", fontsize=8.5, frameon=True, edgecolor="none", framealpha=0.9)
    axes[0][0].set_ylabel("% of requests or gaps below")
    return figure


def _mark(ax: Any, value: float, style: str, colour: str, label: str) -> None:
    text = f"{label} {value:,.0f} ms" if value >= 10 else f"{label} {value:.2g} ms"
    ax.axvline(value, linestyle=style, color=colour, linewidth=1.3, label=text)


def _mark_slo(ax: Any, seconds: float | None, longest: float) -> None:
    """Only in the legend where a line would squeeze the curve."""
    if seconds is None:
        return
    if 1e3 * seconds <= 1.5 * longest:
        _mark(ax, 1e3 * seconds, "-", COLOURS[3], "SLO")
    else:
        ax.plot(
            [], [], color=COLOURS[3], linewidth=1.3, label=f"SLO {1e3 * seconds:,.0f} ms, right"
        )


def _logarithmic(ax: Any, values: list[float]) -> None:
    """Without the few values that are far below all others."""
    from matplotlib.ticker import LogLocator, NullLocator

    ax.set_xscale("log")
    least = values[len(values) // 50]
    ax.set_xlim(left=least / 1.5)
    subs = (1.0,) if values[-1] > 150 * least else (1.0, 3.0)
    ax.xaxis.set_major_locator(LogLocator(subs=subs, numticks=8))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")  # that of logs is another


def _throughput(summary: Summary) -> Any:
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    series, seconds = summary["series"], summary["seconds"]
    edges = [series["step"] * place for place in range(len(series["sent"]))] + [seconds]
    widths = [max(1e-3, b - a) for a, b in pairwise(edges)]

    def rates(name: str) -> list[float]:
        return [each / width for each, width in zip(series[name], widths, strict=True)]

    figure, (tokens, requests, flight) = plt.subplots(3, 1, figsize=(10, 6.4), sharex=True)
    tokens.stairs(rates("output_tokens"), edges, color=COLOURS[0], linewidth=1.5)
    tokens.set(ylabel="output tok/s")
    for name, colour in (("sent", COLOURS[1]), ("finished", COLOURS[2]), ("failed", COLOURS[3])):
        if any(series[name]):
            requests.stairs(rates(name), edges, color=colour, label=name, linewidth=1.5)
    requests.set(ylabel="requests/s")
    if any(requests.get_legend_handles_labels()):
        requests.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)
    flight.plot([0.0, *edges[1:]], [0.0, *series["in_flight"]], color=COLOURS[4], linewidth=1.5)
    flight.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    flight.set(ylabel="requests in flight", xlabel=f"seconds, in steps of {series['step']:.3g}")
    for ax in (tokens, requests, flight):
        ax.set_ylim(bottom=0)
        ax.margins(x=0.01)
    return figure


def _fleet(summary: Summary) -> Any:
    from matplotlib import pyplot as plt

    fleet = summary["fleet"]
    if fleet is None:
        return None
    rate = fleet["hit_rate"]
    looked = 1 if rate["time"] else 0
    figure, axes = plt.subplots(
        1 + looked, 1, figsize=(10, 2.7 + 2.5 * looked), sharex=True, squeeze=False
    )
    _usage(axes[0][0], fleet)
    if looked:
        _hits(axes[1][0], rate)
    axes[-1][0].set_xlabel("seconds")
    return figure


def _usage(ax: Any, fleet: Summary) -> None:
    for colour, (name, node) in zip(
        COLOURS, list(fleet["nodes"].items())[:MOST_NODES], strict=False
    ):
        held = [100 * each for each in node["held"]]
        kept = [100 * (a + b) for a, b in zip(node["held"], node["cached"], strict=True)]
        ax.plot(node["time"], held, color=colour, linewidth=1.7, label=f"{name}: held")
        if any(node["cached"]):
            label = f"{name}: held + cached"
            ax.plot(node["time"], kept, color=colour, linewidth=1, linestyle="--", label=label)
    ax.set(ylabel="% of KV blocks", title="KV blocks that requests hold, and with the cached ones")
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=9)


def _hits(ax: Any, rate: Summary) -> None:
    ax.plot(rate["time"], [100 * each for each in rate["rate"]], color=COLOURS[2], linewidth=1.8)
    title = "Prefix cache hits of all nodes, since the start of the load"
    ax.set(ylabel="% of prompt tokens", title=title, ylim=(0, 101))
    ax.margins(x=0.01)


PLOTS: tuple[tuple[str, str, Plot], ...] = (
    ("latency", "Latency", _latencies),
    ("throughput", "Throughput", _throughput),
    ("fleet", "KV cache", _fleet),
)

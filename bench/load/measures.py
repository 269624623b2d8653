"""The figures of a summary that people read, with their names and units."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """`path` leads through the summary. `better` is the sign of an improvement: +1 more is better,
    -1 less, 0 neither.
    """

    label: str
    path: tuple[str, ...]
    unit: str = ""
    scale: float = 1.0
    better: int = 0

    def of(self, summary: Summary) -> float | None:
        """In `unit`; None where there is no such figure."""
        found: Any = summary
        for name in self.path:
            found = None if found is None else found.get(name)
        return None if found is None else found * self.scale

    def show(self, value: float | None) -> str:
        if value is None:
            return "–"
        digits = 0 if abs(value) >= 1000 or value == int(value) else 1 if abs(value) >= 10 else 2
        space = "" if self.unit in ("", "%") else " "
        return f"{value:,.{digits}f}{space}{self.unit}"


def _latency(name: str, label: str) -> Iterator[Measure]:
    for share in ("p50", "p90", "p99"):
        yield Measure(f"{label} {share}", ("latency", name, share), "ms", 1e3, -1)


LATENCIES = (
    *_latency("ttft", "TTFT"),
    *_latency("itl", "ITL"),
    *_latency("e2e", "end to end"),
)
RATES = (
    Measure("goodput", ("goodput", "requests_per_s"), "req/s", better=+1),
    Measure("requests within the SLO", ("goodput", "share"), "%", 100, +1),
    Measure("answered", ("throughput", "requests_per_s"), "req/s", better=+1),
    Measure("output", ("throughput", "output_tokens_per_s"), "tok/s", better=+1),
    Measure("prompts", ("throughput", "prompt_tokens_per_s"), "tok/s", better=+1),
)
CACHE = (
    Measure("cached prompt tokens", ("cache", "cached_tokens"), better=+1),
    Measure("of all prompt tokens", ("cache", "share"), "%", 100, +1),
    Measure("busiest node's computed tokens ÷ mean", ("nodes", "spread"), "×", better=-1),
)
REQUESTS = (
    Measure("requests answered", ("requests", "ok"), better=+1),
    Measure("requests failed", ("requests", "failed"), better=-1),
)
GENERATOR = (
    Measure("generator's CPU, of a core", ("generator", "cpu"), "%", 100),
    Measure("its CPU in the worst second", ("generator", "highest_cpu"), "%", 100),
    Measure("send lag p50", ("generator", "send_lag", "p50"), "ms", 1e3),
    Measure("send lag p99", ("generator", "send_lag", "p99"), "ms", 1e3),
    Measure("event loop lag p99", ("generator", "loop_lag", "p99"), "ms", 1e3),
)
MEASURES = (*LATENCIES, *RATES, *CACHE, *REQUESTS, *GENERATOR)


def caveats(summary: Summary) -> list[str]:
    """What a reader must know before the figures."""
    said = []
    if summary["invalid"]:
        reasons = "; ".join(summary["invalid"])
        said.append(f"INVALID: the load generator did not keep up ({reasons})")
    if summary["interrupted"]:
        requests = summary["requests"]
        said.append(
            f"INTERRUPTED after {summary['seconds']:.1f} s: {requests['interrupted']} requests cut "
            f"off, {requests['unsent']} of {requests['planned']} not sent"
        )
    if summary["loop"] == "closed":
        said.append(
            "CLOSED LOOP: an answer makes the next request, so the server sets the pace and the "
            "time that users would have waited is hidden"
        )
    if summary["requests"]["unsent"] and not summary["interrupted"]:
        count = summary["requests"]["unsent"]
        said.append(f"{count} requests were not sent: what they would have answered to failed")
    if summary["requests"]["short"]:
        count = summary["requests"]["short"]
        said.append(f"{count} answers were shorter than asked for: not the same load elsewhere")
    return said


def counted_from(summary: Summary) -> str:
    """From when latencies count."""
    if summary["loop"] == "closed":
        return "Latencies count from the sending of a request."
    return (
        "Latencies count from the planned time of a request, not from when it was sent: what the "
        "generator is late by is in them (no coordinated omission)."
    )


def errors_of(summary: Summary) -> list[tuple[str, int, str]]:
    """Status, how many, and what one said; the most frequent first."""
    found = [(name, each["count"], each["example"]) for name, each in summary["errors"].items()]
    return sorted(found, key=lambda entry: -entry[1])

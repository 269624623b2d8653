"""The metrics of one process, as numbers to ask for."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, isfinite

from prometheus_client.parser import text_string_to_metric_families

Labels = Mapping[str, str]
Samples = Mapping[str, list[tuple[Labels, float]]]
"""By name, with `_total`, `_bucket`, `_sum` and `_count` as they are told."""

COUNTED = ("_total", "_bucket", "_sum", "_count")


@dataclass(frozen=True, slots=True)
class Readings:
    """What is counted was counted in `seconds`: since the process started, or in a window."""

    address: str  # host:port that tells them
    samples: Samples
    seconds: float

    def value(self, name: str, **labels: str) -> float | None:
        """The sum of those with these labels; None without any."""
        found = [
            value for told, value in self.samples.get(name, ()) if labels.items() <= told.items()
        ]
        return sum(found) if found else None

    def total(self, name: str, **labels: str) -> float:
        """As `value`, 0 without any."""
        return self.value(name, **labels) or 0.0

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums by the value of a label."""
        found: dict[str, float] = {}
        for labels, value in self.samples.get(name, ()):
            key = labels.get(label, "")
            found[key] = found.get(key, 0.0) + value
        return found

    def info(self, name: str) -> Labels:
        """The labels of a metric that there is once; empty without."""
        return next((labels for labels, _ in self.samples.get(name, ())), {})

    def mean(self, histogram: str) -> float | None:
        count = self.total(f"{histogram}_count")
        return self.total(f"{histogram}_sum") / count if count else None

    def below(self, histogram: str, share: float) -> float | None:
        """The bound of the bucket that `share` of the values are up to; inf past the last one, None
        without values.
        """
        buckets = self.by(f"{histogram}_bucket", "le")
        counts = sorted((float(bound), count) for bound, count in buckets.items())
        if not counts or not counts[-1][1]:
            return None
        wanted = share * counts[-1][1]
        return next((bound for bound, count in counts if count >= wanted), inf)

    @property
    def period(self) -> str:
        for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
            if self.seconds >= 2 * size:
                return f"in {self.seconds / size:.0f} {unit}"
        return f"in {self.seconds:.0f} s"


def parse(address: str, text: str) -> Readings:
    """Of Prometheus' text format. Raises ValueError for anything else."""
    families = text_string_to_metric_families(text)
    samples = collect((s.name, s.labels, s.value) for family in families for s in family.samples)
    started = samples.get("process_start_time_seconds", [({}, time.time())])[0][1]
    return Readings(address, samples, max(0.0, time.time() - started))


def collect(samples: Iterable[tuple[str, Labels, float]]) -> Samples:
    """Without those whose value is not known, or beyond all bounds."""
    found: dict[str, list[tuple[Labels, float]]] = {}
    for name, labels, value in samples:
        if isfinite(value):
            found.setdefault(name, []).append((labels, value))
    return found

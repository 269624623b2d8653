"""Counters and histograms that are counted on one thread: no locks, no objects for labels. Those of
prometheus-client take five times as long, and a request passes a dozen.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally(Collector):
    """A counter. Without labels it is there from the start, else once there is something to count.

    Read from other threads, added to on one.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str, *labels: str) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0}
        registry.register(self)

    def add(self, amount: float = 1, *values: str) -> None:
        """`values` are those of the labels."""
        self._counts[values] = self._counts.get(values, 0) + amount

    def value(self, *values: str) -> float:
        return self._counts.get(values, 0)

    def describe(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterable[Metric]:
        metric = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in list(self._counts.items()):
            metric.add_metric(values, count)
        yield metric


@dataclass(slots=True, eq=False)
class _Series:
    buckets: list[int]
    total: float = 0.0


class Distribution(Collector):
    """A histogram, as Tally is a counter. `bounds` are the upper ones of its buckets."""

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        text: str,
        bounds: Sequence[float],
        *labels: str,
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds
        self._names = [*(floatToGoString(bound) for bound in bounds), "+Inf"]  # type: ignore[no-untyped-call]
        self._series: dict[tuple[str, ...], _Series] = {}
        if not labels:
            self._open(())
        registry.register(self)

    def add(self, value: float, *values: str, times: int = 1) -> None:
        """`times`: how many had this value."""
        series = self._series.get(values) or self._open(values)
        series.buckets[bisect_left(self._bounds, value)] += times
        series.total += value * times

    def _open(self, values: tuple[str, ...]) -> _Series:
        self._series[values] = series = _Series([0] * len(self._names))
        return series

    def describe(self) -> Iterable[Metric]:
        yield HistogramMetricFamily(self._name, self._text, labels=self._labels)

    def collect(self) -> Iterable[Metric]:
        metric = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        for values, buckets, total in self.read():
            metric.add_metric(values, buckets, total)
        yield metric

    def read(self) -> Iterable[tuple[tuple[str, ...], list[tuple[str, float]], float]]:
        """Values of the labels, how many up to each bound, and their sum."""
        for values, series in list(self._series.items()):
            buckets = list(zip(self._names, map(float, accumulate(series.buckets)), strict=True))
            yield values, buckets, series.total

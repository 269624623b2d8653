"""Figures of a benchmark: several runs of one measurement, and goals that they are held against."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Spread:
    """The same thing measured several times, at least once. Timings are noisy: the median counts,
    least and most say how far to trust it.
    """

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return median(self.values)

    @property
    def least(self) -> float:
        return min(self.values)

    @property
    def most(self) -> float:
        return max(self.values)

    def as_json(self) -> dict[str, object]:
        return {"median": self.median, "values": list(self.values)}


def quantile(ranked: Sequence[float], share: float) -> float:
    """What `share` of the sorted values are below; at least one value."""
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be. `at_most` says on which side of `limit`."""

    name: str
    value: float
    limit: float
    at_most: bool = True

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Goal":
        """Of what `as_json` gave."""
        at_most = "at_most" in fields
        limit = fields["at_most" if at_most else "at_least"]
        return cls(fields["name"], fields["value"], limit, at_most)

    @property
    def met(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        side = "at most" if self.at_most else "at least"
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.name} {self.value:.3g}, {side} {self.limit:g}"

    def as_json(self) -> dict[str, object]:
        side = "at_most" if self.at_most else "at_least"
        return {"name": self.name, "value": self.value, side: self.limit, "met": self.met}

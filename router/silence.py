"""Finds nodes that have gone silent: a host that hangs breaks no connection."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Watched:
    on_silent: Callable[[], None]
    silent: float = 0.0  # seconds


class SilenceDetector:
    """Counts the seconds since each watched thing was last heard of; told the time by whoever calls
    `check`.

    Time in which this process itself stood still (a late check) does not count against the others:
    what they sent meanwhile is not read yet.
    """

    def __init__(self, limit: float, period: float) -> None:
        self.period = period
        self._limit = limit
        self._watched: dict[str, _Watched] = {}
        self._last_check: float | None = None

    def watch(self, name: str, on_silent: Callable[[], None]) -> None:
        """`on_silent` is called once, when `name` has not been heard of for the limit."""
        self._watched[name] = _Watched(on_silent)

    def unwatch(self, name: str) -> None:
        self._watched.pop(name, None)

    def heard(self, name: str) -> None:
        """Too late for one that has been reported: nothing happens."""
        if (watched := self._watched.get(name)) is not None:
            watched.silent = 0.0

    def check(self, now: float) -> None:
        elapsed = 0.0 if self._last_check is None else now - self._last_check
        self._last_check = now
        for name, watched in list(self._watched.items()):
            watched.silent += min(elapsed, 2 * self.period)
            if watched.silent >= self._limit:
                del self._watched[name]
                watched.on_silent()

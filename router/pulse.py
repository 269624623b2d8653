"""Time as it passes for the nodes: what each keeps us waiting is counted in it."""

from collections.abc import Callable


class Pulse:
    """Tells listeners at each beat how much time has passed since the last one.

    Time in which this process itself stood still (a late beat) does not count against the nodes:
    what they sent meanwhile is not read yet.
    """

    def __init__(self, period: float) -> None:
        self.period = period
        self._listeners: list[Callable[[float], None]] = []
        self._last: float | None = None

    def on_beat(self, listener: Callable[[float], None]) -> None:
        self._listeners.append(listener)

    def beat(self, now: float) -> None:
        elapsed = 0.0 if self._last is None else min(now - self._last, 2 * self.period)
        self._last = now
        for listener in self._listeners:
            listener(elapsed)

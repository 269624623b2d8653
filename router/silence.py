"""Finds nodes that have gone silent: a host that hangs breaks no connection."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Watched:
    on_silent: Callable[[], None]
    on_dead: Callable[[], None]
    silent: float = 0.0  # seconds
    told: bool = False


class SilenceDetector:
    """Counts the seconds since each watched thing was last heard of; told by `pass_time` how many
    have passed. Two limits: a thing that is silent may only be slow, and is heard of again; one
    that is dead is not watched any more.
    """

    def __init__(self, silent_after: float, dead_after: float) -> None:
        self._silent_after = silent_after
        self._dead_after = dead_after
        self._watched: dict[str, _Watched] = {}

    def watch(self, name: str, on_silent: Callable[[], None], on_dead: Callable[[], None]) -> None:
        """Each is called once for a silence that has come to its limit."""
        self._watched[name] = _Watched(on_silent, on_dead)

    def unwatch(self, name: str) -> None:
        self._watched.pop(name, None)

    def heard(self, name: str) -> None:
        """Too late for one that is dead: nothing happens."""
        if (watched := self._watched.get(name)) is not None:
            watched.silent, watched.told = 0.0, False

    def pass_time(self, seconds: float) -> None:
        for name, watched in list(self._watched.items()):
            watched.silent += seconds
            if watched.silent >= self._silent_after and not watched.told:
                watched.told = True
                watched.on_silent()
            if watched.silent >= self._dead_after:
                del self._watched[name]
                watched.on_dead()

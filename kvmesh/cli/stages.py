"""How long the stages of a start take (download, convert, load, warm up), by process."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stage:
    """A finished stage of one process."""

    process: str
    name: str
    seconds: float


class Stages:
    """Each process is in one stage at most; the next stage, or `end`, ends the one before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.finished: list[Stage] = []
        self._clock = clock
        self._current: dict[str, tuple[str, float]] = {}

    def enter(self, process: str, name: str) -> bool:
        """Whether that is news: a stage reports itself many times, as it goes on."""
        if self._current.get(process, ("", 0.0))[0] == name:
            return False
        self.end(process)
        self._current[process] = (name, self._clock())
        return True

    def end(self, process: str) -> Stage | None:
        """The stage that ended, if the process was in one."""
        if process not in self._current:
            return None
        name, since = self._current.pop(process)
        stage = Stage(process, name, self._clock() - since)
        self.finished.append(stage)
        return stage

    def longest(self, name: str) -> float | None:
        """Seconds of the slowest process in that stage; None if none was in it."""
        return max((stage.seconds for stage in self.finished if stage.name == name), default=None)

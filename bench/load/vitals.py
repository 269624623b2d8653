"""Whether the load generator itself keeps up: its CPU time, and how late its event loop is."""

import asyncio
import time
from array import array
from collections.abc import Callable

TICK = 0.05  # seconds
WINDOW = 1.0  # seconds over which the largest CPU share is taken


class Vitals:
    """Of this process, while `watch` runs. What the loop is late by, every answer may be late by:
    it is noticed when the loop comes to it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] = time.process_time,
    ) -> None:
        self.lags: array[float] = array("d")  # seconds, one a tick
        self.highest_cpu = 0.0  # share of a core, in the worst window
        self._clock, self._cpu = clock, cpu
        self._begun = self._window = (clock(), cpu())

    async def watch(self) -> None:
        """Until it is cancelled."""
        self._begun = self._window = (self._clock(), self._cpu())
        due = self._clock() + TICK
        while True:
            await asyncio.sleep(max(0.0, due - self._clock()))
            now = self._clock()
            while due <= now:  # those that it has slept through count too
                self.lags.append(now - due)
                due += TICK
            if now - self._window[0] >= WINDOW:
                self.highest_cpu = max(self.highest_cpu, self._share_since(self._window))
                self._window = (now, self._cpu())

    @property
    def cpu(self) -> float:
        """Share of one core since the start."""
        return self._share_since(self._begun)

    def _share_since(self, mark: tuple[float, float]) -> float:
        seconds = self._clock() - mark[0]
        return (self._cpu() - mark[1]) / seconds if seconds > 0 else 0.0

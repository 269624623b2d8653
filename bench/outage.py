"""What requests notice of a Prometheus that is frozen or dead: nothing."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Goal, Spread
from bench.prometheus import PrometheusServer
from bench.requests import random_prompt
from kvmesh.cli.ask import ask
from kvmesh.client import Client
from kvmesh.errors import RequestError

STREAMS, PROMPT, OUTPUT = 4, 64, 16
SCRAPED, FROZEN, DEAD, BACK = "scraped", "frozen", "dead", "coming back"
LONGER = 1.1  # the median time of a request during an outage over that of before and after


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that began in `phase`; times are seconds, None where it failed."""

    phase: str
    first: float | None
    whole: float | None


@dataclass(frozen=True, slots=True)
class OutageResult:
    seconds: float  # of each outage
    asked: Sequence[Asked]
    problems: Sequence[str]  # what failed requests said

    @property
    def failed(self) -> int:
        return len(self.problems)

    def first(self, phase: str) -> Spread:
        return Spread.of(e.first for e in self.asked if e.phase == phase and e.first is not None)

    def whole(self, phase: str) -> Spread:
        return Spread.of(e.whole for e in self.asked if e.phase == phase and e.whole is not None)

    def longer(self, phase: str) -> float:
        """A request's median time, over that while it is scraped."""
        return self.whole(phase).median / self.whole(SCRAPED).median

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("requests that failed", self.failed, 0),
            Goal("time of a request while Prometheus is frozen", self.longer(FROZEN), LONGER),
            Goal("time of a request while Prometheus is dead", self.longer(DEAD), LONGER),
        ]


def measure_outage(
    target: str, processes: Mapping[str, Sequence[str]], seconds: float
) -> OutageResult:
    """Four streams at a time to the router at `target`, while a Prometheus of its own scrapes the
    `processes`, host:port by job, every second; is frozen for `seconds`; scrapes again; is dead
    for as long. What lies between is as long, half of it before the first and after the last.

    Raises FileNotFoundError where no Prometheus is installed, RuntimeError when it does not scrape
    again after an outage.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        prometheus = PrometheusServer(directory, processes)
        stack.callback(prometheus.stop)
        prometheus.start()
        load = stack.enter_context(_Load(target))
        load.settle()
        _scraped(prometheus, load, seconds / 2)
        prometheus.freeze()
        load.go(FROZEN, seconds)
        prometheus.thaw()
        _scraped(prometheus, load, seconds)
        prometheus.stop()
        load.go(DEAD, seconds)
        prometheus.start()
        _scraped(prometheus, load, seconds / 2)
    return OutageResult(seconds, load.asked, load.problems)


def _scraped(prometheus: PrometheusServer, load: "_Load", seconds: float) -> None:
    load.phase = BACK
    end = time.monotonic() + seconds + 30
    while not prometheus.scrapes():
        if time.monotonic() > end:
            raise RuntimeError("Prometheus does not scrape again")
        time.sleep(0.1)
    load.go(SCRAPED, seconds)


class _Load:
    """A context manager: so many streams at a time, each the next when it has ended."""

    def __init__(self, target: str) -> None:
        self.phase = ""
        self.asked: list[Asked] = []
        self.problems: list[str] = []
        self._client = Client(target, timeout=120)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(STREAMS)]

    def __enter__(self) -> "_Load":
        return self

    def settle(self) -> None:
        """Starts; returns once all has been computed once."""
        for thread in self._threads:
            thread.start()
        while len(self.asked) < STREAMS and not self.problems:
            time.sleep(0.01)

    def go(self, phase: str, seconds: float) -> None:
        """So long, and until each stream has ended a request of it."""
        before, self.phase = len(self.asked), phase
        time.sleep(seconds)
        while sum(each.phase == phase for each in self.asked[before:]) < STREAMS:
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._client.close()

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set():
            phase = self.phase
            try:
                answer = ask(
                    self._client,
                    token_ids=random_prompt(draw, PROMPT),
                    max_tokens=OUTPUT,
                    ignore_eos=True,
                )
            except RequestError as error:
                self.asked.append(Asked(phase, None, None))
                self.problems.append(f"{phase}: {error}")
            else:
                self.asked.append(Asked(phase, answer.ttft, answer.seconds))

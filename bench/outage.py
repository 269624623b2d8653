"""What requests notice of a Prometheus that is frozen or dead: nothing."""

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.figures import Goal, Spread
from bench.prometheus import PrometheusServer
from bench.requests import random_prompt
from bench.usage import cpu_seconds
from kvmesh.cli.ask import ask
from kvmesh.client import Client
from kvmesh.errors import RequestError

STREAMS, PROMPT, OUTPUT = 4, 64, 16
FROZEN, DEAD = "frozen", "dead"
BACK, ANSWERS = 60.0, 120.0  # seconds at most: a busy machine is slow
WORK, WAIT = 1.1, 2.0  # what an outage may make of a request's CPU time, and of the longest one


class Moment(NamedTuple):
    """When a request began: around which outage, and whether Prometheus was away or scraping."""

    outage: str
    away: bool


OTHER = Moment("", away=False)  # it starts


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer. Times are seconds."""

    began: Moment
    first: float
    whole: float


@dataclass(slots=True)
class Work:
    """Of router and nodes."""

    cpu: float = 0.0  # seconds
    answers: int = 0


@dataclass(frozen=True, slots=True)
class OutageResult:
    """By the wall clock requests show what others do on the machine: what an outage costs is told
    by CPU time, and that nobody waits by the longest request.
    """

    seconds: float  # of each outage
    asked: Sequence[Asked]
    work: Mapping[Moment, Work]
    problems: Sequence[str]  # what failed requests said

    def first(self, moment: Moment) -> Spread:
        """Seconds to the first token."""
        return Spread.of(each.first for each in self.asked if each.began == moment)

    def whole(self, moment: Moment) -> Spread:
        """Seconds to the last."""
        return Spread.of(each.whole for each in self.asked if each.began == moment)

    def cpu(self, moment: Moment) -> float:
        """Seconds for an answer."""
        return self.work[moment].cpu / self.work[moment].answers

    @property
    def goals(self) -> list[Goal]:
        return [Goal("requests that failed", len(self.problems), 0), *self._of(FROZEN, DEAD)]

    def _of(self, *outages: str) -> Iterator[Goal]:
        for outage in outages:
            away, scraped = Moment(outage, away=True), Moment(outage, away=False)
            more = self.cpu(away) / self.cpu(scraped)
            longest = self.whole(away).most / self.whole(scraped).most
            yield Goal(f"CPU time of a request while Prometheus is {outage}", more, WORK)
            yield Goal(f"longest request while Prometheus is {outage}", longest, WAIT)


def measure_outage(
    target: str, processes: Mapping[str, Sequence[str]], pids: Sequence[int], seconds: float
) -> OutageResult:
    """Four streams at a time to the router at `target`, while a Prometheus of its own scrapes the
    `processes`, host:port by job, every second; `pids` are theirs. It is frozen for `seconds`, then
    dead for as long; around each outage it scrapes for as long too, half of it before and half
    after.

    Raises FileNotFoundError where no Prometheus is installed, RuntimeError when it does not scrape
    again after an outage, or when there are no answers.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        prometheus = PrometheusServer(directory, processes)
        stack.callback(prometheus.stop)
        prometheus.start()
        load = stack.enter_context(_Load(target, pids))
        load.go(OTHER, 0)  # the first answers are slower
        for outage, leave, come_back in (
            (FROZEN, prometheus.freeze, prometheus.thaw),
            (DEAD, prometheus.stop, prometheus.start),
        ):
            _until_it_scrapes(prometheus)
            load.go(Moment(outage, away=False), seconds / 2)
            leave()
            load.go(Moment(outage, away=True), seconds)
            load.began = OTHER
            come_back()
            _until_it_scrapes(prometheus)
            load.go(Moment(outage, away=False), seconds / 2)
            load.began = OTHER
    return OutageResult(seconds, load.asked, load.work, load.problems)


def _until_it_scrapes(prometheus: PrometheusServer) -> None:
    end = time.monotonic() + BACK
    while not prometheus.scrapes():
        if time.monotonic() > end:
            raise RuntimeError(f"Prometheus does not scrape again within {BACK:g} s")
        time.sleep(0.1)


class _Load:
    """A context manager: so many streams at a time, each the next when it has ended."""

    def __init__(self, target: str, pids: Sequence[int]) -> None:
        self.began = OTHER  # what requests of now begin in
        self.asked: list[Asked] = []
        self.work: dict[Moment, Work] = {}
        self.problems: list[str] = []
        self._pids = pids
        self._client = Client(target, timeout=120)
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(STREAMS)]

    def __enter__(self) -> "_Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    def go(self, moment: Moment, seconds: float) -> None:
        """So long, and until as many requests of it were answered as there are streams. Raises
        RuntimeError when they are not.
        """
        before, self.began = len(self.asked), moment
        cpu = self._cpu()
        time.sleep(seconds)
        end = time.monotonic() + ANSWERS
        while sum(each.began == moment for each in self.asked[before:]) < STREAMS:
            if time.monotonic() > end:
                raise RuntimeError(f"no answers any more: {self.problems[-1:]}")
            time.sleep(0.01)
        work = self.work.setdefault(moment, Work())
        work.cpu += self._cpu() - cpu
        work.answers += len(self.asked) - before

    def _cpu(self) -> float:
        return sum(map(cpu_seconds, self._pids))

    def _ask(self, seed: int) -> None:
        draw = random.Random(seed)
        while not self._stop.is_set():
            began, tokens = self.began, random_prompt(draw, PROMPT)
            try:
                answer = ask(self._client, token_ids=tokens, max_tokens=OUTPUT, ignore_eos=True)
            except RequestError as error:
                self.problems.append(f"Prometheus {began.outage}: {error}")
                self._stop.wait(0.1)
            else:
                self.asked.append(Asked(began, answer.ttft, answer.seconds))

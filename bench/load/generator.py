"""Sends a plan's requests at their times, however slowly the server answers."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bench.load.config import LoadConfig
from bench.load.outcome import INTERRUPTED, OK, UNSENT, Outcome, RequestFailedError
from bench.load.plan import Plan, Turn
from bench.load.sender import Sender

LATEST = 50


@dataclass(slots=True)
class Tally:
    """How it goes, for those who watch: cheap to look at, however many requests there are."""

    in_flight: int = 0
    answered: int = 0
    failed: int = 0
    output_tokens: int = 0  # of the ended ones
    latest_ttfts: deque[float] = field(default_factory=lambda: deque(maxlen=LATEST))

    def end(self, outcome: Outcome) -> None:
        self.in_flight -= 1
        self.answered += outcome.ok
        self.failed += outcome.failed
        self.output_tokens += outcome.output_tokens
        if outcome.ok and outcome.ttft is not None:
            self.latest_ttfts.append(outcome.ttft)


class Generator:
    """One run of a plan. `outcomes` has an entry for each turn whose time has come or will not.

    Cancel `run` to stop early: requests on their way are given up, and all that is known stays.
    """

    def __init__(
        self,
        plan: Plan,
        sender: Sender,
        config: LoadConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.plan = plan
        self.outcomes: list[Outcome] = []
        self.tally = Tally()
        self._sender = sender
        self._config = config
        self._clock = clock
        self._begun = clock()

    def now(self) -> float:
        """Seconds from the start of the load."""
        return self._clock() - self._begun

    async def run(self) -> None:
        """Returns when all requests have ended."""
        self._begun = self._clock()
        try:
            async with asyncio.TaskGroup() as tasks:
                if self._config.closed:
                    turns = iter(self.plan.roots)
                    for _ in range(self._config.concurrency):
                        tasks.create_task(self._worker(turns))
                else:
                    await self._dispatch(tasks)
        finally:
            self._note_unsent()

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        """Writes each request before its time, and hands it over then, or at once if it is late."""
        for turn in self.plan.roots:
            body = self._sender.prepare(turn)
            await asyncio.sleep(max(0.0, turn.delay - self.now()))
            tasks.create_task(self._tree(turn, turn.delay, body))

    async def _worker(self, turns: Iterator[Turn]) -> None:
        """One of those who send the next session as soon as the one before has ended."""
        for turn in turns:
            body = self._sender.prepare(turn)
            await self._tree(turn, self.now(), body)

    async def _tree(self, turn: Turn, planned: float, body: bytes) -> None:
        """The turn, and those that answer to it."""
        outcome = Outcome(turn, planned)
        self.outcomes.append(outcome)
        await self._send(outcome, body)
        if outcome.ok and outcome.ended is not None:
            ended = outcome.ended
            followers = self.plan.followers(turn)
            await asyncio.gather(*(self._follow(each, ended + each.delay) for each in followers))

    async def _follow(self, turn: Turn, planned: float) -> None:
        body = self._sender.prepare(turn)
        await asyncio.sleep(max(0.0, planned - self.now()))
        await self._tree(turn, planned, body)

    async def _send(self, outcome: Outcome, body: bytes) -> None:
        """Never raises but when it is cancelled."""
        outcome.status, outcome.sent = INTERRUPTED, self.now()
        self.tally.in_flight += 1
        try:
            await self._sender.send(body, outcome, self.now)
            outcome.status = OK
        except RequestFailedError as error:
            outcome.status, outcome.message = error.status, str(error)
        except Exception as error:  # noqa: BLE001  # one request must not end the others
            outcome.status, outcome.message = type(error).__name__, str(error)
        finally:
            outcome.ended = self.now()
            self.tally.end(outcome)

    def _note_unsent(self) -> None:
        """Those whose turn has never come: `planned` is when the load ended."""
        seen = {outcome.turn.number for outcome in self.outcomes}
        now = self.now()
        missing = (turn for turn in self.plan.turns if turn.number not in seen)
        self.outcomes += (Outcome(turn, now, status=UNSENT) for turn in missing)

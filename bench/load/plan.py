"""Which requests are sent, and when: all of it drawn before the first one goes out.

A session is requests that follow each other, as a user's or an agent's do. Its first one has a
planned time. A later one is planned a pause after the end of the one that it answers to: nobody
replies to what has not been said. A request of a trace is a session of its own.
"""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from bench.load.arrivals import arrival_times
from bench.load.config import LoadConfig
from bench.load.prompt import Prompt, prompt_tokens
from bench.load.recorded import recorded_sessions
from bench.load.session import Session, Step
from bench.load.workloads import sessions_of


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `delay` counts from the start of the load, or the end of the turn `after`."""

    number: int
    session: int
    prompt: Prompt
    output: int
    after: int | None
    delay: float

    @property
    def prompt_tokens(self) -> int:
        return prompt_tokens(self.prompt)


class Plan:
    """All turns by number; `roots` are those with a planned time, in its order."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns
        self.roots = sorted(
            (turn for turn in turns if turn.after is None), key=lambda turn: turn.delay
        )
        self._followers: defaultdict[int, list[Turn]] = defaultdict(list)
        for turn in turns:
            if turn.after is not None:
                self._followers[turn.after].append(turn)

    def followers(self, turn: Turn) -> Sequence[Turn]:
        """What is sent once `turn` has been answered."""
        return self._followers.get(turn.number, ())


def make_plan(config: LoadConfig) -> Plan:
    """The same for the same config. Raises OSError and ValueError for a trace that cannot be read
    or holds nothing.
    """
    if config.trace is not None:
        timed = islice(recorded_sessions(config), config.requests)
        turns = list(_turns(timed))
    else:
        sessions = list(_first_requests(sessions_of(config), config.requests))
        a_session = config.requests / len(sessions)
        draw = random.Random(f"{config.seed} arrivals")
        times = arrival_times(config.arrivals, config.rate / a_session, draw)
        turns = list(_turns(zip(times, sessions, strict=False)))
    if config.duration is not None:
        turns = _before(turns, config.duration)
    if not turns:
        raise ValueError("nothing to send: the load holds no request")
    return Plan(turns)


def _first_requests(sessions: Iterable[Session], count: int) -> Iterator[Session]:
    """The last session is cut to what is left of `count`."""
    left = count
    for session in sessions:
        yield session[:left]
        left -= len(session)
        if left <= 0:
            return


def _turns(timed: Iterable[tuple[float, Session]]) -> Iterator[Turn]:
    first = 0
    for session, (arrival, steps) in enumerate(timed):
        for place, step in enumerate(steps):
            yield _turn(step, first, place, session, arrival)
        first += len(steps)


def _turn(step: Step, first: int, place: int, session: int, arrival: float) -> Turn:
    after = None if step.after is None else first + step.after
    delay = arrival if step.after is None else step.pause
    return Turn(first + place, session, step.prompt, step.output, after, delay)


def _before(turns: list[Turn], duration: float) -> list[Turn]:
    """Sessions that begin before `duration`."""
    kept = {turn.session for turn in turns if turn.after is None and turn.delay < duration}
    return [turn for turn in turns if turn.session in kept]

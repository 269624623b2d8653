"""Who is next: by class, and inside a class each tenant in turn. Plain Python, without a clock."""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from math import ceil

from router.request_size import RequestSize
from router.watermark import Wait

QUANTUM = 512
"""Tokens that a tenant of weight 1 may start with each turn."""

MAX_OVERTAKES = 64
"""So many requests may start before one that does not fit yet; then all wait until it has room."""


class PriorityClass(IntEnum):
    """The first goes first, whatever waits in the others. The names are labels of metrics."""

    HIGH = 0
    NORMAL = 1
    LOW = 2

    @classmethod
    def of(cls, priority: int) -> "PriorityClass":
        return cls.NORMAL if not priority else cls.HIGH if priority > 0 else cls.LOW


@dataclass(slots=True, eq=False)
class Waiter:
    """A request in the queue. Times are the caller's, in seconds."""

    tenant: str
    weight: float
    priority: PriorityClass
    cost: int  # tokens that it is expected to take
    size: RequestSize
    arrived: float
    start_by: float  # later than that it cannot start in time
    overtaken: int = 0
    reason: Wait = Wait.TURN


@dataclass(slots=True)
class _Turn:
    """A tenant's requests in one class, and how many tokens it may start with now."""

    waiters: deque[Waiter] = field(default_factory=deque)
    credit: float = 0.0

    def first(self, passed: Collection[Waiter]) -> Waiter | None:
        """Its oldest request, those that have been passed apart."""
        return next((each for each in self.waiters if each not in passed), None)

    def rounds(self, waiter: Waiter) -> int:
        """Turns until so large a request may start."""
        return max(0, ceil((waiter.cost - self.credit) / (QUANTUM * waiter.weight)))

    def grant(self, rounds: int) -> None:
        first = self.waiters[0]
        turn = QUANTUM * first.weight
        # However long it waits, it saves up no more than it can use.
        self.credit = min(self.credit + rounds * turn, first.cost + turn)


class FairQueue:
    """Deficit round robin on tokens between the tenants of a class; classes in strict order.

        HIGH    acme: ▪▪▪      ▸ first of all
        NORMAL  acme: ▪▪▪▪▪▪▪▪▪  zeta: ▪   ▸ zeta's turn comes after at most one of acme's
        LOW     …

    A full queue keeps the peace in the same way: it gives up the newest request of whoever has most
    in the lowest class. One that does not fit may be overtaken, MAX_OVERTAKES times.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._classes: dict[PriorityClass, OrderedDict[str, _Turn]] = {
            each: OrderedDict() for each in PriorityClass
        }
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Waiter]:
        for turns in self._classes.values():
            for turn in turns.values():
                yield from turn.waiters

    def push(self, waiter: Waiter) -> Waiter | None:
        """Takes it in. Returns who has to leave for that, which can be `waiter` itself."""
        turns = self._classes[waiter.priority]
        turns.setdefault(waiter.tenant, _Turn()).waiters.append(waiter)
        self._count += 1
        if self._count <= self._limit:
            return None
        excess = self._largest().waiters[-1]
        self.remove(excess)
        return excess

    def pop(self, obstacle: Callable[[Waiter], Wait | None], look_ahead: int = 16) -> Waiter | None:
        """The next that may start; None when none may. `obstacle` says why one may not.

        At most `look_ahead` are passed, and know why they wait.
        """
        passed: list[Waiter] = []
        for turns in self._classes.values():
            while (waiter := _next(turns, passed)) is not None:
                reason = obstacle(waiter)
                if reason is None:
                    self._take(turns, waiter)
                    for each in passed:
                        each.overtaken += 1
                    return waiter
                waiter.reason = reason
                passed.append(waiter)
                if waiter.overtaken >= MAX_OVERTAKES or len(passed) == look_ahead:
                    return None
        return None

    def remove(self, waiter: Waiter) -> None:
        """Takes it out wherever it stands. It must be here."""
        turns = self._classes[waiter.priority]
        turn = turns[waiter.tenant]
        turn.waiters.remove(waiter)
        if not turn.waiters:
            del turns[waiter.tenant]
        self._count -= 1

    def ahead_of(self, waiter: Waiter) -> int:
        """How many start before it if all tenants take turns, request by request."""
        above = sum(len(turn.waiters) for turn in self._turns_above(waiter.priority))
        turns = self._classes[waiter.priority]
        own = turns[waiter.tenant].waiters.index(waiter)
        others = (turn for tenant, turn in turns.items() if tenant != waiter.tenant)
        return above + own + sum(min(len(turn.waiters), own + 1) for turn in others)

    def check_integrity(self) -> None:
        assert self._count == sum(1 for _ in self) <= self._limit
        for priority, turns in self._classes.items():
            for tenant, turn in turns.items():
                assert turn.waiters
                assert all((w.tenant, w.priority) == (tenant, priority) for w in turn.waiters)
                assert turn.credit >= 0

    def _turns_above(self, priority: PriorityClass) -> Iterator[_Turn]:
        for each, turns in self._classes.items():
            if each < priority:
                yield from turns.values()

    def _largest(self) -> _Turn:
        """Of the lowest class that has any."""
        turns = next(turns for turns in reversed(self._classes.values()) if turns)
        return max(turns.values(), key=_claim)

    def _take(self, turns: OrderedDict[str, _Turn], waiter: Waiter) -> None:
        turn = turns[waiter.tenant]
        if rounds := turn.rounds(waiter):
            for each in turns.values():
                each.grant(rounds)
        turn.credit = max(0.0, turn.credit - waiter.cost)
        self.remove(waiter)
        if turn.waiters and turn.rounds(turn.waiters[0]):
            turns.move_to_end(waiter.tenant)


def _next(turns: OrderedDict[str, _Turn], passed: Collection[Waiter]) -> Waiter | None:
    """The one whose turn comes first."""
    firsts = (turn.first(passed) for turn in turns.values())
    return min(
        (each for each in firsts if each is not None),
        key=lambda waiter: turns[waiter.tenant].rounds(waiter),
        default=None,
    )


def _claim(turn: _Turn) -> float:
    return len(turn.waiters) / turn.waiters[0].weight

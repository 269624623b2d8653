"""Keeps requests away from a node that fails them. Plain Python, with an injected clock."""

from collections.abc import Callable
from enum import Enum

FAILURES = 5
"""In a row, until a breaker opens."""

SUCCESSES = 2
"""Of trials, until it closes again."""

FIRST_REST, LONGEST_REST = 1.0, 30.0
"""Seconds that it stays open: twice as long after each failed trial."""


class BreakerState(Enum):
    CLOSED = "closed"  # requests go there
    OPEN = "open"  # none does
    HALF_OPEN = "half-open"  # one at a time does, on trial


class Breaker:
    """Of one node, told of each call that is sent there and of how it went.

        CLOSED ──failures in a row──▶ OPEN ──after a rest──▶ HALF_OPEN ──successes──▶ CLOSED
                                       ▲                          │
                                       └─────────a failure────────┘

    A failure is a fault of the node: what it refuses, because it is full or because the client is
    wrong, is none. While it is not closed only trials count, not calls from before.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """The node is another one now: it has restarted."""
        self._failures = self._successes = 0
        self._rest = FIRST_REST
        self._opened: float | None = None
        self._on_trial = False

    @property
    def state(self) -> BreakerState:
        if self._opened is None:
            return BreakerState.CLOSED
        rested = self._clock() - self._opened >= self._rest
        return BreakerState.HALF_OPEN if rested else BreakerState.OPEN

    @property
    def allows(self) -> bool:
        """Whether a request may go there now."""
        if self._opened is None:
            return True  # asked of each node for each request
        return self.state is BreakerState.HALF_OPEN and not self._on_trial

    def began(self) -> bool:
        """A call is sent; whether it is a trial. Its owner says so again when it tells the end."""
        trial = self.state is BreakerState.HALF_OPEN and not self._on_trial
        self._on_trial |= trial
        return trial

    def succeeded(self, trial: bool) -> None:
        if self._opened is None:
            self._failures = 0
        elif trial:
            self._on_trial = False
            self._successes += 1
            if self._successes >= SUCCESSES:
                self.reset()

    def failed(self, trial: bool) -> None:
        if self._opened is None:
            self._failures += 1
            if self._failures >= FAILURES:
                self._open()
        elif trial:
            self._rest = min(2 * self._rest, LONGEST_REST)
            self._open()

    def abandoned(self, trial: bool) -> None:
        """The call ended without saying anything about the node."""
        if trial:
            self._on_trial = False

    def _open(self) -> None:
        self._opened = self._clock()
        self._successes = 0
        self._on_trial = False

"""Bounds the retries of all requests together. Plain Python, with an injected clock.

A fleet in trouble must not get more work for it: retries may be a share of the requests, and a few
a second where there are few requests. Finagle's RetryBudget has the same two parts.
"""

from collections.abc import Callable

PER_SECOND = 10.0
"""Retries that are always to be had."""

MOST = 100.0
"""Retries that are kept while nobody needs them: a lost node takes some dozens at once."""


class RetryBudget:
    """`share`: retries that each request adds."""

    def __init__(self, share: float, clock: Callable[[], float]) -> None:
        self._share = share
        self._clock = clock
        self._left = MOST
        self._filled = clock()

    def deposit(self) -> None:
        """A request has come."""
        self._left = min(MOST, self.left + self._share)

    @property
    def can_withdraw(self) -> bool:
        """Whether there is a retry to be had; if not, the request has to end."""
        return self.left >= 1

    def withdraw(self) -> None:
        """Takes one, which must be there."""
        assert self.can_withdraw
        self._left -= 1

    @property
    def left(self) -> float:
        now = self._clock()
        self._left = min(MOST, self._left + PER_SECOND * (now - self._filled))
        self._filled = now
        return self._left

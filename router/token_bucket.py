"""A rate with a burst."""


class TokenBucket:
    """Holds up to `burst`, and gets `rate` a second. Times are the caller's, in seconds.

    What is taken may be corrected later, and the level may fall below zero then: a debt, which
    delays what comes next.
    """

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._level, self._updated = burst, now

    def delay(self, amount: float, now: float) -> float:
        """Seconds until `amount` can be taken, 0 if it can be now. More than a burst is waited for
        only as long as a burst.
        """
        missing = min(amount, self._burst) - self._refilled(now)
        return max(0.0, missing / self._rate)

    def take(self, amount: float, now: float) -> None:
        """Takes it in any case; a negative amount gives back."""
        self._level = min(self._refilled(now) - amount, self._burst)

    def retune(self, rate: float, burst: float, now: float) -> None:
        """Other limits from now on; what has been saved up stays, as far as it fits."""
        self._level = min(self._refilled(now), burst)
        self._rate, self._burst = rate, burst

    def _refilled(self, now: float) -> float:
        self._level = min(self._level + max(0.0, now - self._updated) * self._rate, self._burst)
        self._updated = now
        return self._level

"""How long to wait between attempts to reach a server that is away."""

import random


class Backoff:
    """Doubles from `least` to `most` seconds, with jitter: clients shall not come back together."""

    def __init__(self, least: float = 0.1, most: float = 5.0) -> None:
        self._least, self._most = least, most
        self.failures = 0  # in a row

    def fail(self) -> float:
        """Counts a failure. Returns the seconds to wait before the next attempt."""
        longest = min(self._most, self._least * 2.0 ** min(self.failures, 30))
        self.failures += 1
        return longest * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        self.failures = 0

"""What became of one request, as its sender saw it."""

from array import array
from dataclasses import dataclass, field

from bench.load.plan import Turn

OK = "OK"
INTERRUPTED = "interrupted"  # it ran when the load was stopped
UNSENT = "unsent"  # what it would have answered to failed, or the load was stopped before


class RequestFailedError(Exception):
    """A request that ended otherwise than well. `status` is short and the same for the same cause:
    errors are counted by it.
    """

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(message or status)
        self.status = status


@dataclass(slots=True, eq=False)
class Outcome:
    """Times are seconds from the start of the load. Latencies count from `planned`: a request that
    was sent late has waited, although the server did not know.
    """

    turn: Turn
    planned: float
    sent: float | None = None
    first: float | None = None  # token
    last: float | None = None
    ended: float | None = None
    output_tokens: int = 0
    gaps: "array[float]" = field(default_factory=lambda: array("d"))  # before each token, but one
    prompt_tokens: int | None = None  # as the server counts them
    cached_tokens: int = 0
    node: str = ""
    status: str = UNSENT
    message: str = ""

    def frame(self, now: float, tokens: int) -> None:
        """`tokens` came together: the time since those before is shared by them."""
        self.output_tokens += tokens
        if self.last is None:
            self.first = self.last = now
            return
        gap = (now - self.last) / tokens
        self.last = now
        if tokens == 1:
            self.gaps.append(gap)
        else:
            self.gaps.extend([gap] * tokens)

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def failed(self) -> bool:
        return self.status not in (OK, INTERRUPTED, UNSENT)

    @property
    def lag(self) -> float | None:
        """By how much it was sent late."""
        return None if self.sent is None else self.sent - self.planned

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.planned

    @property
    def e2e(self) -> float | None:
        return None if self.ended is None else self.ended - self.planned

    @property
    def mean_gap(self) -> float | None:
        """Between two tokens; None below two."""
        if self.first is None or self.last is None or self.output_tokens < 2:
            return None
        return (self.last - self.first) / (self.output_tokens - 1)

"""How requests reach a server."""

from collections.abc import Callable
from typing import Protocol

from bench.load.outcome import Outcome
from bench.load.plan import Turn

Clock = Callable[[], float]
"""Seconds from the start of the load."""


class Sender(Protocol):
    """One transport to one server.

        body = sender.prepare(turn)               # ahead of its time: costs CPU
        await sender.send(body, outcome, clock)   # fills in what comes back

    Used on one event loop, by any number of requests at once.
    """

    async def open(self) -> None:
        """Raises ConnectionError for a server that is not there or cannot be used."""

    def prepare(self, turn: Turn) -> bytes:
        """What is sent. The same for the same turn, seed and settings."""

    async def send(self, body: bytes, outcome: Outcome, clock: Clock) -> None:
        """Returns when the answer is complete. Raises RequestFailedError when it is not."""

    async def close(self) -> None: ...

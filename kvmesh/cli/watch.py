"""Waiting for a fleet, as its router sees it."""

import asyncio

from kvmesh.cli.child import LogLine

PATIENCE = 60.0  # seconds from ready processes to a router that sees them


class UpWatch:
    """Learns from the router's log which nodes are up: nobody needs to connect, whatever
    certificates or keys a client must have.
    """

    def __init__(self) -> None:
        self._up: set[str] = set()
        self._details: dict[str, str] = {}
        self._news = asyncio.Event()

    def take(self, line: LogLine) -> None:
        """One line of the router."""
        if line.event != "node":
            return
        address, health = str(line.fields.get("address")), line.fields.get("health")
        self._details[address] = f"{line.fields.get('node')}: {line.fields.get('detail')}"
        if health == "UP":
            self._up.add(address)
        else:
            self._up.discard(address)
        self._news.set()

    async def until(self, count: int) -> None:
        """Returns when `count` nodes are up. Raises TimeoutError, with what the router says of the
        others, when that takes too long.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while len(self._up) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            others = [text for address, text in self._details.items() if address not in self._up]
            detail = "; ".join(others) or "the router has seen none of the others"
            raise TimeoutError(f"not all of {count} nodes came up: {detail}") from None

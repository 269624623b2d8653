"""Finds the nodes behind a name: those that are there now, which may be others in a moment."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Thread

import structlog

from kvmesh.addresses import host_and_port
from router.node import Node
from router.node_names import Name
from router.registry import Registry

log = structlog.get_logger("router")

INTERVAL = 2.0  # seconds between two look-ups
GRACE = 30.0  # seconds that a node may be missing and away before it is forgotten

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses behind a name and port; OSError if it cannot be said now."""


@dataclass(slots=True)
class _Found:
    node: Node
    watching: asyncio.Task[None]
    missing_since: float | None = field(default=None)


class Discovery:
    """Every address that the names resolve to is a node of the registry, watched from then on,
    unless it is one of the configuration already.

    A name that no longer lists a node says nothing of its health: it is forgotten when it is also
    away, for GRACE seconds.
    """

    def __init__(
        self,
        names: Sequence[Name],
        registry: Registry,
        watch: Callable[[Node], asyncio.Task[None]],
        resolve: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._registry = registry
        self._watch = watch
        self._resolve = resolve or look_up
        self._clock = clock
        self._found: dict[str, _Found] = {}
        self._failing: set[Name] = set()  # that could not be looked up the last time

    async def run(self) -> None:
        """For as long as the router lives."""
        while True:
            await self.look()
            await asyncio.sleep(INTERVAL)

    async def look(self) -> None:
        """Takes in who is there now. When a name cannot be looked up, all stays as it was."""
        listed: dict[str, str] = {}  # host names by address
        for name in self._names:
            try:
                addresses = await self._resolve(name.host, name.port)
            except OSError as error:
                self._tell_failure(name, error)
            else:
                self._failing.discard(name)
                listed |= dict.fromkeys(addresses, name.host)
        known = {node.address for node in self._registry.nodes}
        for address, host in listed.items():
            if address not in known:
                node = self._registry.add(address, host)
                self._found[address] = _Found(node, self._watch(node))
        if not self._failing:
            for address in list(self._found):
                await self._check_missing(address, address in listed)

    async def _check_missing(self, address: str, is_listed: bool) -> None:
        found = self._found[address]
        if is_listed or found.node.accepted:
            found.missing_since = None
            return
        now = self._clock()
        if found.missing_since is None:
            found.missing_since = now
        if now - found.missing_since >= GRACE:
            del self._found[address]
            found.watching.cancel()
            await asyncio.wait([found.watching])
            await self._registry.remove(found.node)

    def _tell_failure(self, name: Name, error: OSError) -> None:
        if name not in self._failing:
            log.warning("discovery", host=name.host, error=str(error))
            self._failing.add(name)


async def look_up(host: str, port: int) -> list[str]:
    """host:port of each address, IPv6 in brackets. Raises OSError.

    On a thread of its own, which nobody waits for at the end: a resolver may take half a minute.
    """
    answer: Future[list[str]] = Future()
    answer.set_running_or_notify_cancel()
    Thread(target=_answer, args=(answer, host, port), name=f"look up {host}", daemon=True).start()
    return await asyncio.wrap_future(answer)


def _answer(answer: Future[list[str]], host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        answer.set_result([host_and_port(str(place[0]), port) for *_, place in found])
    except OSError as error:
        answer.set_exception(error)
    except Exception as error:  # noqa: BLE001  # UnicodeError: an empty or a long label
        answer.set_exception(OSError(f"{host}: {error}"))

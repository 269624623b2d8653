"""What the endpoints that take a body have in common."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from router.config import RouterConfig
from router.core import RouterCore
from router.exchange import Exchange
from router.failures import as_request_error

T = TypeVar("T")

SMALL = 64 << 10
"""Bytes of a body that are read on the event loop: a thread's round trip costs more."""


class Endpoint(ABC):
    """An ASGI application. A client that leaves ends the work for it; every failure is an answer.

    `name` is its label in metrics. `closing` ends what still runs.
    """

    def __init__(
        self, name: str, core: RouterCore, config: RouterConfig, closing: asyncio.Event
    ) -> None:
        self._name = name
        self._core = core
        self._config = config
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._closing)
        try:
            with self._core.arrival(self._name, exchange.request.headers.items()) as tenant:
                exchange.tenant = tenant
                config = self._config
                raw = await exchange.read(config.max_request_bytes, config.body_timeout)
                await exchange.while_there(self._answer(raw, exchange))
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets an answer
            await exchange.fail(as_request_error(error))

    @abstractmethod
    async def _answer(self, raw: bytes, exchange: Exchange) -> None:
        """Answers a body that is no larger than allowed. Raises RequestError."""


async def off_loop(raw: bytes, work: Callable[[], T]) -> T:
    """`work` on a body: in a thread when the body is large. Raises what `work` raises."""
    return work() if len(raw) <= SMALL else await asyncio.to_thread(work)

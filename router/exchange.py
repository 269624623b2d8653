"""One HTTP request and its answer, which is whole, a stream of events, or an error at any point."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvmesh.errors import Code, RequestError, unavailable
from router.http_errors import error_response, in_openais_words
from router.http_head import choose_request_id
from router.http_io import read_body
from router.openai_answers import error_body, event
from router.tenants import EVERYBODY

T = TypeVar("T")


class Exchange:
    """Knows whether the answer has begun: before that an error is a status, after it an event in
    the stream. Several tasks may write events; each is sent whole.

    `send` waits while the client reads slower than we write, so an unread stream stays bounded.
    Once `closing` is set, what still runs ends with an error that says so.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, closing: asyncio.Event) -> None:
        self.request = Request(scope, receive)
        self.names: dict[str, str] = {}  # of fields, in the client's words
        self.tenant = EVERYBODY  # until it is known whose request it is
        self._scope, self._receive, self._send = scope, receive, send
        self._closing = closing
        self._start = time.monotonic()
        self._writing = asyncio.Lock()
        self._streaming = False
        self._complete = False

    def request_id(self, own: str | None) -> str:
        """The header's, else `own` of the body, else a new one; not checked."""
        return choose_request_id(self._scope, own)

    async def read(self, max_bytes: int, timeout: float) -> bytes:
        """The body. Raises RequestError."""
        return await self._unless(read_body(self.request, max_bytes, timeout))

    async def while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` and raises what it raises. Raises CANCELLED, and cancels it, as soon as the
        client has gone.

        The body must have been read: from then on ASGI has nothing to say but that.
        """
        await self._unless(work, self._gone())

    async def _unless(
        self, work: Coroutine[Any, Any, T], gone: Coroutine[Any, Any, None] | None = None
    ) -> T:
        task = asyncio.ensure_future(work)
        closing = asyncio.ensure_future(self._closing.wait())
        others = [closing] if gone is None else [closing, asyncio.ensure_future(gone)]
        try:
            await asyncio.wait((task, *others), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not self._complete:
                if closing.done():
                    raise unavailable("the router is shutting down")
                raise RequestError(Code.CANCELLED, "the client left")
            return await task
        finally:
            for each in (task, *others):
                each.cancel()
            await asyncio.gather(task, *others, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def elapsed_us(self) -> int:
        return int((time.monotonic() - self._start) * 1e6)

    async def start_stream(self, headers: dict[str, str]) -> None:
        """Nothing happens the second time."""
        async with self._writing:
            if self._streaming:
                return
            headers = {
                "content-type": "text/event-stream; charset=utf-8",
                "cache-control": "no-cache",
                **headers,
            }
            encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": encoded})
            self._streaming = True

    async def write(self, events: bytes) -> None:
        if events:
            await self._write(events)

    async def end(self, events: bytes) -> None:
        self._complete = True
        await self._write(events, more=False)

    async def _write(self, events: bytes, more: bool = True) -> None:
        async with self._writing:
            await self._send({"type": "http.response.body", "body": events, "more_body": more})

    async def send_json(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._complete = True
        response = Response(body, headers=headers, media_type="application/json")
        await response(self._scope, self._receive, self._send)

    async def fail(self, error: RequestError) -> None:
        """A stream ends without finish reason and [DONE]: it does not pretend to be complete."""
        if self._complete:
            return
        error = in_openais_words(error, self.names)
        if self._streaming:
            await self.end(event(error_body(error)))
            return
        await error_response(error)(self._scope, self._receive, self._send)

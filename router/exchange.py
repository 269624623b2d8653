"""One HTTP request and its answer, which is whole, a stream of events, or an error at any point."""

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from kvmesh.errors import Code, RequestError
from router.answer import Answer
from router.http_errors import error_response, in_openais_words
from router.openai_answers import error_body, event


class Exchange:
    """Knows whether the answer has begun: before that an error is a status, after it an event in
    the stream.

    `send` waits while the client reads slower than we write, so an unread stream stays bounded.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.request = Request(scope, receive)
        self.names: dict[str, str] = {}  # of fields, in the client's words
        self._scope, self._receive, self._send = scope, receive, send
        self._start = time.monotonic()
        self._streaming = False
        self._complete = False

    async def while_there(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work` and raises what it raises. Raises CANCELLED, and cancels it, as soon as the
        client has gone.

        The body must have been read: from then on ASGI has nothing to say but that.
        """
        task = asyncio.ensure_future(work)
        gone = asyncio.ensure_future(self._gone())
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and not self._complete:
                raise RequestError(Code.CANCELLED, "the client left")
            await task
        finally:
            for each in (gone, task):
                each.cancel()
            await asyncio.gather(gone, task, return_exceptions=True)

    async def _gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def elapsed_us(self) -> int:
        return int((time.monotonic() - self._start) * 1e6)

    async def start_stream(self, answer: Answer) -> None:
        headers = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            **_names(answer),
        }
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": 200, "headers": encoded})
        self._streaming = True

    async def write(self, events: bytes) -> None:
        if events:
            await self._send({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self, events: bytes) -> None:
        self._complete = True
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def send_json(self, value: dict[str, Any], answer: Answer) -> None:
        self._complete = True
        response = JSONResponse(value, headers=_names(answer))
        await response(self._scope, self._receive, self._send)

    async def fail(self, error: RequestError) -> None:
        """A stream ends without finish reason and [DONE]: it does not pretend to be complete."""
        if self._complete:
            return
        error = in_openais_words(error, self.names)
        if self._streaming:
            await self.end(event(error_body(error)))
            return
        response = error_response(error)
        if request_id := self.request.headers.get("x-request-id"):
            response.headers["x-request-id"] = request_id[:128]
        await response(self._scope, self._receive, self._send)


def _names(answer: Answer) -> dict[str, str]:
    return {"x-request-id": answer.report.request_id, "x-kvmesh-node": answer.report.node}

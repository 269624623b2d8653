"""One HTTP request and its answer, which is whole, a stream of events, or an error at any point."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from kvmesh.errors import RequestError
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
        self._scope, self._receive, self._send = scope, receive, send
        self._start = time.monotonic()
        self._streaming = False

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
        await self._send({"type": "http.response.body", "body": events, "more_body": False})

    async def send_json(self, value: dict[str, Any], answer: Answer) -> None:
        response = JSONResponse(value, headers=_names(answer))
        await response(self._scope, self._receive, self._send)

    async def fail(self, error: RequestError) -> None:
        """A broken stream ends without [DONE] and without a finish reason: it does not pretend to
        be complete.
        """
        error = in_openais_words(error)
        if self._streaming:
            await self.end(event(error_body(error)))
            return
        response = error_response(error)
        if request_id := self.request.headers.get("x-request-id"):
            response.headers["x-request-id"] = request_id[:128]
        await response(self._scope, self._receive, self._send)


def _names(answer: Answer) -> dict[str, str]:
    return {"x-request-id": answer.report.request_id, "x-kvmesh-node": answer.report.node}

"""uvicorn's HTTP connection, with a patience that ends.

uvicorn times out a connection that is idle after an answer, and no other: one that never finishes
its headers, or the body of a request that has been answered, would stay for ever.
"""

import asyncio
import socket
from typing import Any

import h11
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from kvmesh.errors import RequestError, invalid
from kvmesh.tls import ServerTls
from router.http_errors import error_response
from router.http_head import LargeHeadError, certified
from router.http_io import SlowClientError


class PatientConfig(uvicorn.Config):
    """uvicorn's, with `header_timeout` in seconds, and our own TLS."""

    def __init__(
        self, app: ASGIApp, *, header_timeout: float, tls: ServerTls | None, **settings: Any
    ) -> None:
        super().__init__(app, http=PatientConnection, **settings)
        self.header_timeout = header_timeout
        self._tls = tls

    def load(self) -> None:
        super().load()
        self.ssl = self._tls.ssl_context() if self._tls is not None else None


class PatientConnection(H11Protocol):
    """The peer has `header_timeout` seconds for the head of a request, from the first byte on or
    from the opening of the connection; and as long for the rest of a body that nobody waits for any
    more. The body of a request that is being answered is its endpoint's to time out.

        opened ──▶ head expected ──head──▶ body, answer ──▶ idle ──byte──▶ head expected
                    └── timeout: 408 ──▶ closed ◀── uvicorn's keep-alive ──┘
    """

    def __init__(self, config: PatientConfig, **context: Any) -> None:
        super().__init__(config, **context)
        self._timeout = config.header_timeout
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Head and body of an answer are two writes: with Nagle's algorithm the second waits 40 ms
        # for a client's delayed acknowledgement. asyncio leaves it on for listeners made elsewhere.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if (certificate := transport.get_extra_info("peercert")) is not None:
            self.app = certified(self.app, certificate)
        self._arm()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._peer_owes():
            self._arm()
        else:
            self._disarm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls it for what h11 cannot read."""
        unread, _closed = self.conn.trailing_data
        limit = self.config.h11_max_incomplete_event_size or 0
        large = len(unread) > limit
        self._refuse(
            LargeHeadError(limit) if large else invalid("request", f"is not HTTP/1.1: {msg}")
        )

    def _peer_owes(self) -> bool:
        """A part of a head, or of a body that is no longer waited for."""
        answered = self.conn.our_state in (h11.DONE, h11.MUST_CLOSE)
        state = self.conn.their_state
        return state is h11.IDLE or (answered and state is h11.SEND_BODY)

    def _arm(self) -> None:
        """A deadline stays where it is, however many bytes come."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(self._timeout, self._give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        unread, _closed = self.conn.trailing_data
        if self.conn.our_state is h11.IDLE and unread:
            self._refuse(SlowClientError(f"the headers did not come within {self._timeout:g} s"))
        else:
            self.transport.close()

    def _refuse(self, error: RequestError) -> None:
        """An answer to what never became a request."""
        answer: Response = error_response(error)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

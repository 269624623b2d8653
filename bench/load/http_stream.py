"""An HTTP/1.1 exchange whose answer is read line by line while it comes.

A connection of its own for each, as few copies and as few calls a line as asyncio allows: a line
of a stream is a token.
"""

import asyncio
from collections.abc import Callable
from ssl import SSLContext
from typing import cast

MOST_HEAD = 64 << 10  # bytes
MOST_ERROR = 4096  # bytes that are kept of an answer other than 200


class HttpError(Exception):
    """The server does not speak HTTP as it should, or went away."""


class LineStream(asyncio.Protocol):
    """Sends `request`, and calls `on_line` with each line of a body with status 200.

    `done` has the result: None, or HttpError. `status`, `headers` and, for other statuses than
    200, `error` are there then.
    """

    def __init__(self, request: bytes, on_line: Callable[[bytes], None]) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.error = b""
        self._request = request
        self._on_line = on_line
        self._raw = bytearray()  # not looked at yet
        self._body = bytearray()  # the beginning of a line
        self._read: Callable[[], bool] = self._head  # whether there is more to read now
        self._left = 0  # bytes of the chunk, or of the body

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._raw += data
        try:
            while self._raw and not self.done.done() and self._read():
                pass
        except Exception as error:  # noqa: BLE001  # of the bytes or of who reads the lines
            self._end(HttpError(f"{type(error).__name__}: {error}"))

    def eof_received(self) -> None:
        if self._read == self._until_close:
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._read == self._until_close and error is None:
            self._end(None)
        self._end(HttpError(str(error or "the connection closed early")))

    def _end(self, error: HttpError | None) -> None:
        if self.done.done():
            return
        if error is None:
            if self._body:
                self._take(b"\n")
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def _head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > MOST_HEAD:
                raise HttpError("the head of the answer has no end")
            return False
        first, *lines = self._raw[:end].decode("latin-1").split("\r\n")
        del self._raw[: end + 4]
        version, status, *_ = first.split(" ", 2)
        if not version.startswith("HTTP/1."):
            raise HttpError(f"not HTTP/1.1: {first[:80]}")
        self.status = int(status)
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._read = self._way_of_body()
        return True

    def _way_of_body(self) -> Callable[[], bool]:
        if "chunked" in self.headers.get("transfer-encoding", ""):
            return self._chunk_size
        if "content-length" in self.headers:
            self._left = int(self.headers["content-length"])
            if not self._left:
                self._end(None)
            return self._counted
        return self._until_close

    def _chunk_size(self) -> bool:
        end = self._raw.find(b"\r\n")
        if end < 0:
            return False
        self._left = int(self._raw[:end].split(b";")[0], 16)
        del self._raw[: end + 2]
        if not self._left:
            self._end(None)  # what trails is not looked at
            return False
        self._read = self._chunk
        return True

    def _chunk(self) -> bool:
        if len(self._raw) < self._left + 2:
            return False
        self._take(self._raw[: self._left])
        del self._raw[: self._left + 2]
        self._read = self._chunk_size
        return True

    def _counted(self) -> bool:
        part = self._raw[: self._left]
        del self._raw[: self._left]
        self._left -= len(part)
        self._take(part)
        if not self._left:
            self._end(None)
        return False

    def _until_close(self) -> bool:
        self._take(self._raw)
        self._raw.clear()
        return False

    def _take(self, part: bytes | bytearray) -> None:
        if self.status != 200:
            self.error += part[: MOST_ERROR - len(self.error)]
            return
        self._body += part
        *lines, rest = bytes(self._body).split(b"\n")
        self._body[:] = rest
        for line in lines:
            if line:
                self._on_line(line)


async def exchange(
    host: str,
    port: int,
    tls: SSLContext | None,
    request: bytes,
    on_line: Callable[[bytes], None],
) -> LineStream:
    """Returns when the answer has come. Raises HttpError and OSError."""
    loop = asyncio.get_running_loop()
    transport, stream = await loop.create_connection(
        lambda: LineStream(request, on_line), host, port, ssl=tls
    )
    try:
        await stream.done
    finally:
        transport.abort()
    return stream

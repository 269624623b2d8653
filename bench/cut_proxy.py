"""A TCP proxy whose connections can be cut: a network that fails between two healthy processes."""

import asyncio
import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET

CHUNK = 64 << 10


class CutProxy:
    """Listens on a port of its own for one target. `start`, then `stop` once."""

    def __init__(self, target: int) -> None:
        """`target`: a port on this host."""
        self.port = 0
        self._target = target
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    def cut(self) -> None:
        """Resets all connections. New ones may come at once."""
        for writer in list(self._open):
            socket = writer.get_extra_info("socket")
            if socket.fileno() < 0:
                continue  # by the cut before this one
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, back}
        try:
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
        finally:
            self._open -= {writer, back}


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side is gone; then the other one goes too."""
    with suppress(OSError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()
    writer.close()

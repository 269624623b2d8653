"""A TCP proxy whose connections can be cut: a network that fails between two healthy processes."""

import asyncio
import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Self

CHUNK = 64 << 10


class CutProxy:
    """Listens on a port of its own for one target. `start`, then `stop` once."""

    def __init__(self, target: int) -> None:
        """`target`: a port on this host."""
        self.port = 0
        self._target = target
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._stopped = False

    async def start(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self) -> None:
        """Resets all connections. New ones may come at once."""
        for task, writer in self._connections.items():
            socket = writer.get_extra_info("socket")
            if socket.fileno() < 0:
                continue  # by the cut before this one
            socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
            writer.transport.abort()
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        back: asyncio.StreamWriter | None = None
        with suppress(OSError, asyncio.CancelledError):  # either side hung up, or `cut`
            if self._stopped:
                raise ConnectionAbortedError
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        for each in (writer, back):
            if each is not None:
                each.close()
                with suppress(OSError):
                    await each.wait_closed()
        del self._connections[task]

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until one side is gone; then the other one goes too."""
        while chunk := await reader.read(CHUNK):
            await self._pass(chunk)
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async def _pass(self, chunk: bytes) -> None:
        """Returns when `chunk` may go on."""

"""A connection between two processes of a test that can be cut, shut, or made to wait."""

import asyncio
import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET

CHUNK = 64 << 10


class Link:
    """A TCP proxy on a port of its own. `start`, then `stop` once."""

    def __init__(self, target: int) -> None:
        """`target`: a port on this host."""
        self.port = 0
        self._target = target
        self._shut = False
        self._held: bytes | None = None
        self._go_on = asyncio.Event()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> "Link":
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        self._server.close()
        self.shut()
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

    def shut(self) -> None:
        """Cuts, and lets nobody in until `open`."""
        self._shut = True
        self.cut()

    def open(self) -> None:
        self._shut = False

    def hold(self, word: bytes) -> None:
        """What holds `word` does not reach the target until `release`."""
        self._held = word
        self._go_on.clear()

    def release(self) -> None:
        self._held = None
        self._go_on.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shut:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        back: asyncio.StreamWriter | None = None
        with suppress(OSError, asyncio.CancelledError):  # either side, or the test, hung up
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        del self._connections[task]
        for each in (writer, back):
            if each is not None:
                each.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK):
            if self._held is not None and self._held in chunk:
                await self._go_on.wait()
            writer.write(chunk)
            await writer.drain()
        writer.close()

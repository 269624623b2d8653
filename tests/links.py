"""A connection between two processes of a test that can be cut, shut, or made to wait."""

import asyncio

from bench.cut_proxy import CutProxy


class Link(CutProxy):
    """Also keeps everybody out, or some words back."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self._shut = False
        self._held: bytes | None = None
        self._go_on = asyncio.Event()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def stop(self) -> None:
        self._shut = True
        await super().stop()

    def shut(self) -> None:
        """Cuts, and lets nobody in until `open`."""
        self._shut = True
        self.cut()

    def open(self) -> None:
        self._shut = False

    def hold(self, word: bytes) -> None:
        """What holds `word` does not go on until `release`."""
        self._held = word
        self._go_on.clear()

    def release(self) -> None:
        self._held = None
        self._go_on.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._shut:
            writer.transport.abort()
        else:
            await super()._connected(reader, writer)

    async def _pass(self, chunk: bytes) -> None:
        if self._held is not None and self._held in chunk:
            await self._go_on.wait()

"""A program on a terminal of its own, as a person uses it."""

import asyncio
import os
import pty
import re
import subprocess
import sys
from contextlib import suppress

_CODES = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")

PATIENCE = 60.0  # seconds, on a busy machine

# The standard input becomes the controlling terminal: Ctrl-C reaches this process.
_ON_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from kvmesh.cli.main import main
sys.argv[0] = "kvmesh"
main()
"""


class Terminal:
    """Runs `kvmesh` with `arguments` from `start` to `close`. What it shows is read as it comes."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._arguments = arguments
        self._environment = environment
        self._shown = b""
        self._taken = 0
        self._news = asyncio.Event()

    async def __aenter__(self) -> "Terminal":
        ours, theirs = pty.openpty()
        self._master = ours
        self.process = subprocess.Popen(  # noqa: ASYNC220  # starts at once
            [sys.executable, "-c", _ON_TERMINAL, *self._arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "160", **self._environment},
            start_new_session=True,
        )
        os.close(theirs)
        asyncio.get_running_loop().add_reader(ours, self._read)
        return self

    async def __aexit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def type(self, text: str) -> None:
        """Keys; \\n is Return, \\x03 is Ctrl-C, \\x04 is Ctrl-D."""
        os.write(self._master, text.encode())

    async def press(self, keys: str, text: str, every: float = 2.0) -> None:
        """Presses `keys` again and again until `text` shows. Python can lose a Ctrl-C between the
        prompt and its wait for keys, a terminal a Ctrl-D that comes before the prompt.
        """
        for _ in range(int(PATIENCE / every)):
            self.type(keys)
            with suppress(AssertionError):
                await self.until(text, every)
                return
        raise AssertionError(f"{keys!r} again and again, and no {text!r}")

    async def until(self, text: str, within: float = PATIENCE) -> str:
        """What has been shown since the last call, up to and with `text`."""
        async with asyncio.timeout(within):
            while (place := self.shown.find(text, self._taken)) < 0:
                self._news.clear()
                try:
                    await self._news.wait()
                except asyncio.CancelledError:
                    raise AssertionError(f"no {text!r} in {self.shown[self._taken :]!r}") from None
        start, self._taken = self._taken, place + len(text)
        return self.shown[start : self._taken]

    async def end(self, within: float = PATIENCE) -> int:
        """The exit code."""
        return await asyncio.wait_for(asyncio.to_thread(self.process.wait), within)

    @property
    def shown(self) -> str:
        """Everything, without colours and movements."""
        return _CODES.sub(b"", self._shown).decode(errors="replace")

    def _read(self) -> None:
        try:
            self._shown += os.read(self._master, 65536)
        except OSError:  # it has closed its side
            asyncio.get_running_loop().remove_reader(self._master)
        self._news.set()

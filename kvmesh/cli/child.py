"""One kvmesh process that another one runs: its start, its log lines, its end."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kvmesh.cli import parent

LONGEST_LINE = 1 << 20  # bytes; longer ones are dropped


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a child has written. `event` is None where it is no structured log line."""

    text: str
    event: str | None = None
    fields: dict[str, Any] = field(default_factory=dict)


class ChildDiedError(Exception):
    """A child ended that should run."""

    def __init__(self, child: "Child") -> None:
        super().__init__(f"{child.name} {describe_exit(child.exit_code)}")
        self.child = child


class Child:
    """Runs `kvmesh` with `arguments`. Owns the process: `stop` or `kill` ends every `start`.

    `on_line(child, line)` is called with each line of its output, and first with a line of ours
    that says that it starts: its own first word can take seconds of imports.
    """

    def __init__(
        self, name: str, arguments: list[str], on_line: Callable[["Child", LogLine], None]
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.ready: dict[str, Any] = {}  # the fields of its last ready line
        self._on_line = on_line
        self._ready = asyncio.Event()
        self._process: Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Spawns the process. Its own process group keeps a Ctrl-C for the parent to handle."""
        self._ready.clear()
        self._on_line(self, LogLine("", "progress", {"stage": "start"}))
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kvmesh.cli", *self.arguments),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            limit=LONGEST_LINE,
            env={**parent.environment(), "KVMESH_LOG_FORMAT": "json", "PYTHONUNBUFFERED": "1"},
            process_group=0,
        )
        self._reader = asyncio.create_task(self._read(self._process))

    async def until_ready(self) -> None:
        """Returns when the child serves. Raises ChildDiedError if it ends before."""
        ready = asyncio.create_task(self._ready.wait())
        ended = asyncio.create_task(self.wait())
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        ended.cancel()
        if not self._ready.is_set():
            raise ChildDiedError(self)

    async def wait(self) -> int:
        """The exit code, once the process has ended and all its lines are read."""
        assert self._process is not None
        assert self._reader is not None
        await asyncio.shield(self._reader)
        return await self._process.wait()

    async def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds. Idempotent."""
        if not self.running:
            return
        self._signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.wait(), grace)
        except TimeoutError:
            self.kill()
            await self.wait()

    def kill(self) -> None:
        """SIGKILL, now. Idempotent."""
        self._signal(signal.SIGKILL)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode if self._process is not None else None

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _read(self, process: Process) -> None:
        assert process.stdout is not None
        while True:
            try:
                raw = await process.stdout.readline()
            except ValueError:
                continue
            if not raw:
                break
            self._take(_parse(raw.decode(errors="replace").rstrip()))
        await process.wait()

    def _take(self, line: LogLine) -> None:
        if line.event == "ready":
            self.ready = line.fields
            self._ready.set()
        self._on_line(self, line)


def describe_exit(code: int | None) -> str:
    """An exit code in words: "ended with exit code 3", "was killed by SIGKILL"."""
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _parse(text: str) -> LogLine:
    try:
        fields = json.loads(text)
    except ValueError:
        return LogLine(text)
    if not isinstance(fields, dict) or not isinstance(fields.get("event"), str):
        return LogLine(text)
    return LogLine(text, fields["event"], fields)

"""What a person sees of processes that start and run: stages, log lines, last words."""

import json
import sys
from collections import defaultdict, deque
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from kvmesh import log
from kvmesh.cli.child import Child, LogLine
from kvmesh.cli.stages import Stages
from kvmesh.printable import printable

TAIL = 15  # lines that a quiet screen keeps of each process
# Of a structured log line: shown in other ways, or not at all.
HIDDEN = {"event", "level", "timestamp", "component", "name", "logger", "exception"}
STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red"}


class Screen:
    """Progress and messages go to `out`, log lines of child processes to stderr.

    On a terminal a last line moves along with the stages; elsewhere a stage is a line of its own.
    """

    def __init__(self, out: Console | None = None, *, quiet: bool = False) -> None:
        self.out = out or Console(highlight=False)
        self.stages = Stages()
        self._errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._status: Status | None = None
        self._moving: dict[str, str] = {}
        self._unseen: defaultdict[str, deque[LogLine]] = defaultdict(lambda: deque(maxlen=TAIL))

    def say(self, text: str) -> None:
        """A message in rich's markup."""
        self.out.print(text, soft_wrap=True)

    def line(self, child: Child, line: LogLine) -> None:
        """Shows one line of a child, or takes it as news of its progress."""
        if line.event == "progress":
            self.progress(child.name, str(line.fields["stage"]), line.fields.get("done"))
            return
        if line.event == "ready":
            self.done(child.name)
        if not self._quiet or line.fields.get("level") in STYLES:
            self._show(child.name, line)
        else:
            self._unseen[child.name].append(line)

    def progress(self, process: str, stage: str, fraction: float | None) -> None:
        """A process is in `stage`, of which `fraction` is done; None: unknown."""
        if self.stages.enter(process, stage):
            self.say(f"[dim]{process:<8}[/] {stage}")
        self._move(process, stage if fraction is None else f"{stage} {fraction:.0%}")

    def done(self, process: str) -> None:
        """A process has left its last stage."""
        self.stages.end(process)
        self.say(f"[dim]{process:<8}[/] [green]ready[/]")
        self._moving.pop(process, None)
        self._redraw()

    def last_words(self, process: str) -> None:
        """Shows what a quiet screen has kept to itself of a dead process."""
        for line in self._unseen.pop(process, ()):
            self._show(process, line)

    def _move(self, process: str, text: str) -> None:
        self._moving[process] = text
        self._redraw()

    def _redraw(self) -> None:
        if not self.out.is_terminal:
            return
        if not self._moving:
            self.still()
            return
        text = " · ".join(f"{name}: {stage}" for name, stage in self._moving.items())
        if self._status is None:
            self._status = self.out.status(text)
            self._status.start()
        self._status.update(text)

    def still(self) -> None:
        """Takes the moving line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _show(self, name: str, line: LogLine) -> None:
        if log.wants_json() and line.event is not None:
            print(json.dumps(line.fields), file=sys.stderr, flush=True)
            return
        style = STYLES.get(str(line.fields.get("level")), "")
        text = _human(line.fields) if line.event is not None else line.text
        self._errors.print(f"[dim]{name:<8}│[/] {escape(text)}", style=style)


def _human(fields: dict[str, Any]) -> str:
    shown = [f"{key}={value}" for key, value in fields.items() if key not in HIDDEN]
    text = printable(" ".join([str(fields.get("event", "")), *shown]))
    return "\n".join([text, str(fields["exception"])]) if "exception" in fields else text

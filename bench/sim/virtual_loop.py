"""An event loop whose clock goes from one thing that is due to the next, without waiting."""

import asyncio
import selectors
from collections.abc import Callable, Mapping
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVarTuple

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Ts = TypeVarTuple("Ts")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs asyncio code as it is; `time()` starts at 0 and passes only where a timer says so.

    For code without sockets, threads and subprocesses: nothing ever comes from outside. What waits
    for something that nobody will do raises RuntimeError. What is due at one time runs in the order
    in which it was asked for.
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self._due: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._order = count()
        super().__init__(_NothingToSelect())

    def time(self) -> float:
        return self._virtual_now

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._due, (when, next(self._order), timer))
        return timer

    def _run_once(self) -> None:
        """What run_forever repeats: in the place of asyncio's, whose timers compare in Python."""
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._skip()
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _skip(self) -> None:
        """To the next timer."""
        due = self._due
        while due and due[0][2].cancelled():
            heappop(due)
        if not due:
            raise RuntimeError("everything waits, and nothing is due any more")
        self._virtual_now = now = max(self._virtual_now, due[0][0])
        while due and due[0][0] <= now:
            self._ready.append(heappop(due)[2])  # type: ignore[attr-defined]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left where it is until its time comes."""


class _NothingToSelect(selectors.BaseSelector):
    """Takes files in, for the loop's own wake-up pipe, and never finds one ready."""

    def __init__(self) -> None:
        self._keys: dict[FileDescriptorLike, selectors.SelectorKey] = {}

    def register(
        self, fileobj: "FileDescriptorLike", events: int, data: Any = None
    ) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: "FileDescriptorLike") -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:  # noqa: ARG002
        return []

    def get_map(self) -> Mapping["FileDescriptorLike", selectors.SelectorKey]:
        return self._keys

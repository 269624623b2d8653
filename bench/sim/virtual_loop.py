"""An event loop whose clock goes from one thing that is due to the next, without waiting."""

import asyncio
import selectors
from collections.abc import Mapping
from math import ulp
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs asyncio code as it is; `time()` starts at 0 and passes only where a timer says so.

    For code without sockets, threads and subprocesses: nothing ever comes from outside. What waits
    for something that nobody will do raises RuntimeError.
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_NothingToSelect(self))
        self._clock_resolution = ulp(0.0)

    def time(self) -> float:
        return self._virtual_now

    def skip(self, timeout: float | None) -> None:
        """To the next timer, `timeout` seconds ahead; None when there is none."""
        if timeout is None:
            raise RuntimeError("everything waits, and nothing is due any more")
        if timeout > 0:
            self._virtual_now = max(self._virtual_now, self._next_due())
            # What counts as due together with a timer: nothing that is any later.
            self._clock_resolution = ulp(self._virtual_now)

    def _next_due(self) -> float:
        """To the bit what the timer was set to: a sum with `timeout` would be rounded."""
        due: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return due[0].when()


class _NothingToSelect(selectors.BaseSelector):
    """Takes files in, for the loop's own wake-up pipe, and never finds one ready."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._keys: dict[FileDescriptorLike, selectors.SelectorKey] = {}

    def register(
        self, fileobj: "FileDescriptorLike", events: int, data: Any = None
    ) -> selectors.SelectorKey:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, number, events, data)
        return key

    def unregister(self, fileobj: "FileDescriptorLike") -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.skip(timeout)
        return []

    def get_map(self) -> Mapping["FileDescriptorLike", selectors.SelectorKey]:
        return self._keys

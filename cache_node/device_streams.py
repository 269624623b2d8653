"""Streams of a device, and waiting for them."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

Stream = Any  # torch.cuda.Stream, or torch's stand-in for the CPU


class Streams:
    """Of one device. On the CPU, where Triton's interpreter runs, there is one order for all: what
    torch has there for streams and events does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device)

    def new(self) -> Stream:
        return self._module.Stream()

    def current(self) -> Stream:
        return self._module.current_stream()

    def on(self, stream: Stream) -> AbstractContextManager[None]:
        """Makes `stream` the current one of this thread."""
        context: AbstractContextManager[None] = self._module.stream(stream)
        return context

    def wait(self, stream: Stream) -> None:
        """Until all that is on `stream` now has run. The thread sleeps; others have the GIL."""
        event = self._event()
        event.record(stream)
        event.synchronize()

    def seconds(self, stream: Stream, launch: Callable[[], None]) -> float:
        """How long what `launch` puts on `stream` takes, from an idle device."""
        self._module.synchronize()
        started = time.perf_counter()
        launch()
        self.wait(stream)
        return time.perf_counter() - started

    def _event(self) -> Any:
        if self._device.type == "cuda":
            return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        return self._module.Event()

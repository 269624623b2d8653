"""The CPU pool of a KV pool that lies on a device."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from cache_node.device_streams import Stream, Streams
from cache_node.step_plan import BlockCopy
from cache_node.swap_space import SwapSpace
from kernels.triton.block_copy import gather_blocks
from kernels.triton.step_arrays import to_device

STAGING_BYTES = 64 << 20


class PinnedSwapSpace(SwapSpace):
    """In pinned memory, so that copies run beside the kernels, on streams of their own.

        KV pool ──gather, in the step──▶ staging ──copy, beside its kernels──▶ CPU pool
        KV pool ◀──────────────────copy, beside the steps──────────────────── CPU pool

    An offload holds the kernels up only until its blocks are gathered on the device; `settle` ends
    the step when they are in the CPU pool. A load is done when its copies have ended, so what is
    launched after that sees them; until then nothing else touches its blocks, in either pool.
    """

    def __init__(
        self,
        pool: torch.Tensor,
        num_blocks: int,
        streams: Streams,
        begin_load: Callable[[Sequence[BlockCopy]], None] | None = None,
    ) -> None:
        """`pool` is uint8 [blocks, bytes]; `num_blocks` counts the null block. Raises ValueError
        when there is not as much memory.
        """
        super().__init__(pool, _pinned(num_blocks, pool), begin_load)
        self._streams = streams
        self._down, self._up = streams.new(), streams.new()
        at_once = min(max(1, STAGING_BYTES // pool.shape[1]), num_blocks)
        self._staging = pool.new_empty((at_once, pool.shape[1]))
        self._offloading = False

    def offload(self, copies: Sequence[BlockCopy]) -> None:
        """On the current stream, and from there on one of its own."""
        for first in range(0, len(copies), len(self._staging)):
            self._offloading = True
            self._offload_part(copies[first : first + len(self._staging)])

    def settle(self) -> None:
        """Waits until all offloads can be read back."""
        if self._offloading:
            self._streams.wait(self._down)
            self._offloading = False

    def copy_speed(self) -> float:
        """Bytes a second that an offload moves. Writes over the CPU pool, and reads whatever the
        KV pool holds.
        """
        count = min(len(self._staging), len(self._pool) - 1, self.num_blocks - 1)
        if count == 0:
            return 0.0
        copies = [BlockCopy(block, block) for block in range(1, count + 1)]
        self.offload(copies)  # the first compiles
        self.settle()
        seconds = self._streams.seconds(self._down, lambda: self.offload(copies))
        return count * self._pool.shape[1] / seconds

    def _offload_part(self, copies: Sequence[BlockCopy]) -> None:
        current: Stream = self._streams.current()
        current.wait_stream(self._down)  # which may still read the part before
        sources = np.array([copy.source for copy in copies], dtype=np.int64)
        gather_blocks(self._pool, to_device(sources, self._pool.device), self._staging)
        self._down.wait_stream(current)
        with self._streams.on(self._down):
            for place, copy in enumerate(copies):
                self._space[copy.destination].copy_(self._staging[place], non_blocking=True)

    def _copy_up(self, copies: Sequence[BlockCopy]) -> None:
        with self._streams.on(self._up):
            for copy in copies:
                self._pool[copy.destination].copy_(self._space[copy.source], non_blocking=True)
        self._streams.wait(self._up)


def _pinned(num_blocks: int, pool: torch.Tensor) -> torch.Tensor:
    """Registered with the driver where it lies: torch's own pinned memory comes in powers of two,
    up to twice as much.
    """
    size = pool.shape[1]
    try:
        space = np.zeros((num_blocks, size), dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise _too_much(num_blocks, size) from error
    if pool.device.type == "cuda":
        cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(cudart.cudaHostRegister(space.ctypes.data, space.nbytes, 0)):
            raise _too_much(num_blocks, size)
        # Before the memory goes back, but not at the end of the process, when the driver may be
        # gone already.
        weakref.finalize(space, cudart.cudaHostUnregister, space.ctypes.data).atexit = False
    return torch.from_numpy(space)


def _too_much(num_blocks: int, size: int) -> ValueError:
    return ValueError(
        f"swap_space: this machine cannot reserve and pin {num_blocks * size} bytes; give it less"
    )

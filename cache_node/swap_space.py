"""The CPU pool's memory, and the copies between it and the KV pool."""

import queue
import threading
from collections.abc import Callable, Sequence

import structlog
import torch

from cache_node.loads import LoadDone
from cache_node.step_plan import BlockCopy
from kernels.block_copy import copy_between

log = structlog.get_logger()

_Order = tuple[int, Sequence[BlockCopy], LoadDone]


class SwapSpace:
    """Blocks of the KV pool's layout in host memory. Offloads run in the step that orders them;
    loads on a thread of their own, beside the steps (see `Loader` for what they promise).
    """

    def __init__(
        self,
        pool: torch.Tensor,
        space: torch.Tensor,
        begin_load: Callable[[Sequence[BlockCopy]], None] | None = None,
    ) -> None:
        """`pool` is the KV pool and `space` the CPU pool, [blocks, …], each with a null block.
        `begin_load` hears what a load is about to copy, before it does.
        """
        self.num_blocks = len(space)
        self._begin_load = begin_load
        self._pool = pool
        self._space = space
        self._orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None  # started by the first load

    def offload(self, copies: Sequence[BlockCopy]) -> None:
        """Copies down. What the step runs afterwards may overwrite the sources."""
        copy_between(self._pool, self._space, pairs(copies))

    def load(self, number: int, copies: Sequence[BlockCopy], done: LoadDone) -> None:
        if self._begin_load is not None:
            self._begin_load(copies)
        self._orders.put((number, copies, done))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="swap-loader", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            number, copies, done = self._orders.get()
            done(number, self._try_load(number, copies))

    def _try_load(self, number: int, copies: Sequence[BlockCopy]) -> bool:
        try:
            self._copy_up(copies)
        except Exception:
            log.exception("load_failed", load=number, blocks=len(copies))
            return False
        return True

    def _copy_up(self, copies: Sequence[BlockCopy]) -> None:
        """Returns when all is there. On the loader's thread."""
        copy_between(self._space, self._pool, pairs(copies))


def pairs(copies: Sequence[BlockCopy]) -> list[tuple[int, int]]:
    return [(copy.source, copy.destination) for copy in copies]

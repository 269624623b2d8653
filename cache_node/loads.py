"""Blocks on their way from the CPU pool into the KV pool, beside the steps."""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from cache_node.block_pool import BlockPool
from cache_node.sequence import Sequence
from cache_node.step_plan import BlockCopy, BlockId

LoadDone = Callable[[int, bool], None]


class Loader(Protocol):
    """Copies blocks from the CPU pool to the KV pool while steps run.

    `load` returns at once, never raises, and calls `done(number, whether all was copied)` exactly
    once, from any thread, however late. Until then it may write to the destinations.
    """

    def load(self, number: int, copies: Seq[BlockCopy], done: LoadDone) -> None: ...


@dataclass(slots=True)
class Load:
    """Owns a reference on each of its blocks in either pool, until the loader is done with them."""

    number: int  # of this try; a sequence that is loaded again gets another
    sequence: Sequence | None  # None: given up, nobody waits for it any more
    copies: Seq[BlockCopy]
    tokens: int  # of the sequence, that are computed when all is there
    deadline: float


class Loads:
    """All loads that the loader has not finished, given up or not."""

    def __init__(self, kv: BlockPool, cpu: BlockPool, loader: Loader, timeout: float) -> None:
        """`timeout` is in seconds of the scheduler's clock."""
        self._kv, self._cpu, self._loader = kv, cpu, loader
        self._timeout = timeout
        self._numbers = count(1)
        self._loads: dict[int, Load] = {}
        self._fenced: list[Load] = []
        self.loaded_blocks = 0
        self.done: LoadDone | None = None  # set by who owns the scheduler's thread

    def __len__(self) -> int:
        return len(self._loads)

    @property
    def hanging(self) -> bool:
        """Whether a load that was given up has not ended: no other is worth starting."""
        return any(load.sequence is None for load in self._loads.values())

    def start(self, sequence: Sequence, copies: Seq[BlockCopy], tokens: int, now: float) -> None:
        """Begins to fill blocks of the table of `sequence` from the CPU pool. Takes over a
        reference on each CPU block.
        """
        load = Load(next(self._numbers), sequence, copies, tokens, now + self._timeout)
        self._kv.share([copy.destination for copy in copies])
        self._loads[load.number] = load
        self._fenced.append(load)

    def launch(self) -> None:
        """Begins what was started. After the step only: until then the step may still copy down
        what the destinations held before.
        """
        fenced, self._fenced = self._fenced, []
        for load in fenced:
            self._loader.load(load.number, load.copies, self._report)

    def finish(self, number: int, whole: bool) -> Load | None:
        """Gives the references back. The load if somebody still waits for it; a number that is not
        known, as of a loader that calls twice, is None.
        """
        load = self._loads.pop(number, None)
        if load is None:
            return None
        self._kv.free([copy.destination for copy in load.copies])
        self._cpu.free([copy.source for copy in load.copies])
        self.loaded_blocks += whole * len(load.copies)
        return load if load.sequence is not None else None

    def give_up(self, sequence: Sequence) -> None:
        """Nobody waits for the load of `sequence` any more; its blocks stay held until it ends."""
        for load in self._loads.values():
            if load.sequence is sequence:
                load.sequence = None

    def overdue(self, now: float) -> list[Sequence]:
        """Sequences whose load should have been there by now."""
        return [
            load.sequence
            for load in self._loads.values()
            if load.sequence is not None and now > load.deadline
        ]

    def _report(self, number: int, whole: bool) -> None:
        if self.done is not None:
            self.done(number, whole)

    def tables(self) -> Iterator[tuple[list[BlockId], list[BlockId]]]:
        """The references that loads own: (KV blocks, CPU blocks)."""
        for load in self._loads.values():
            yield (
                [copy.destination for copy in load.copies],
                [copy.source for copy in load.copies],
            )

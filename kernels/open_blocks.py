"""Which blocks of an int4 pool are open, and where the keys of each lie."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernels.attention_plan import AttentionRow
from kernels.kv_int4 import Int4Planes


class _Tail(NamedTuple):
    slot: int
    filled: int  # keys


class OpenBlocks:
    """Hands out tails. When they run out, the block that was not used for longest is closed early:
    that costs a little precision, since its keys are quantised twice.

    Blocks are named by those who write them; who frees one says nothing, so a block is forgotten
    when its content is replaced.
    """

    def __init__(self, planes: Int4Planes) -> None:
        self._planes = planes
        self._tails: OrderedDict[int, _Tail] = OrderedDict()  # by block, the longest unused first
        self._free = list(range(len(planes.tails)))

    def begin_step(self, rows: Sequence[AttentionRow]) -> list[AttentionRow]:
        """The rows with their tails. There are at least as many tails as rows of one step."""
        given = [self._begin(row) for row in rows]
        # Those that end with a full block need theirs in this step only.
        size = self._planes.tails.shape[3]
        self._free += [row.tail for row in given if row.tail >= 0 and row.end % size == 0]
        return given

    def copy(self, copies: Iterable[tuple[int, int]]) -> None:
        """Blocks were copied inside the pool, from source to destination."""
        for source, destination in copies:
            self.forget([destination])
            if source in self._tails:
                slot, count = self._take(keep=source), self._tails[source].filled
                self._planes.tails[slot] = self._planes.tails[self._tails[source].slot]
                self._tails[destination] = _Tail(slot, count)

    def close(self, blocks: Iterable[int]) -> None:
        """The pool will hold all there is to know of these."""
        for block in blocks:
            if block in self._tails:
                self._planes.close(block, *self._tails[block])

    def forget(self, blocks: Iterable[int]) -> None:
        """The content of these is replaced."""
        for block in blocks:
            if (tail := self._tails.pop(block, None)) is not None:
                self._free.append(tail.slot)

    def _begin(self, row: AttentionRow) -> AttentionRow:
        size = self._planes.tails.shape[3]
        index, filled = divmod(row.start, size)
        slot = -1
        if filled:
            slot = self._open(row.block_table[index], filled)
        elif row.end % size:
            slot = self._take()
        self.forget(row.block_table[index : -(-row.end // size)])
        if row.end % size:
            self._tails[row.block_table[row.end // size]] = _Tail(slot, row.end % size)
        return row._replace(tail=slot)

    def _open(self, block: int, filled: int) -> int:
        """The tail of `block`, no longer in the books."""
        tail = self._tails.pop(block, None)
        if tail is not None and tail.filled >= filled:
            return tail.slot
        slot = tail.slot if tail is not None else self._take()
        self._planes.reopen(block, slot, filled)
        return slot

    def _take(self, keep: int | None = None) -> int:
        if self._free:
            return self._free.pop()
        block = next(block for block in self._tails if block != keep)
        slot, count = self._tails.pop(block)
        self._planes.close(block, slot, count)
        return slot

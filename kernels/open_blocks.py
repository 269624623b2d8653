"""Which blocks of an int4 pool are open, and where the keys of each lie."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kernels.attention_plan import AttentionRow
from kernels.kv_int4 import Int4Planes
from kernels.kv_layout import KvLayout


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
        """The rows in parts, each within one block and with its tail. There are at least as many
        tails as parts: see `tails_for`.
        """
        size = self._planes.tails.shape[3]
        given = [self._begin(part) for row in rows for part in in_blocks(row, size)]
        # Those that end with a full block need theirs in this step only.
        self._free += [part.tail for part in given if part.end % size == 0]
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

    def _begin(self, part: AttentionRow) -> AttentionRow:
        size = self._planes.tails.shape[3]
        index, filled = divmod(part.start, size)
        block = part.block_table[index]
        slot = self._open(block, filled) if filled else self._take()
        self.forget([block])
        if part.end % size:
            self._tails[block] = _Tail(slot, part.end % size)
        return part._replace(tail=slot)

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


def tails_for(layout: KvLayout, max_rows: int, max_tokens: int) -> int:
    """Tails that the parts of one step need, of at most so many rows and tokens."""
    return 2 * max_rows + layout.blocks_for(max_tokens)


def in_blocks(row: AttentionRow, size: int) -> Iterator[AttentionRow]:
    """The row in parts, each within one block."""
    start = row.start
    while start < row.end:
        end = min(row.end, (start // size + 1) * size)
        yield row._replace(start=start, end=end)
        start = end

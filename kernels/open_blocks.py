"""Which blocks of an int4 pool are open, and where the keys of each lie."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch

from kernels.attention_plan import AttentionRow
from kernels.kv_int4 import Int4Planes
from kernels.kv_layout import KvLayout

Copies = Iterable[tuple[int, int]]
"""Of blocks: source, destination."""


class _Tail(NamedTuple):
    slot: int
    filled: int  # keys


class OpenBlocks:
    """Hands out tails. When they run out, the block that was not used for longest is closed early:
    that costs a little precision, since its keys are quantised twice. Keys of blocks that are
    copied to the CPU pool before they are full go there too, for as many blocks as there are tails.

    Blocks are named by those who write them; who frees one says nothing, so a block is forgotten
    when its content is replaced.
    """

    def __init__(self, planes: Int4Planes) -> None:
        self._planes = planes
        self._tails: OrderedDict[int, _Tail] = OrderedDict()  # by block, the longest unused first
        self._free = list(range(len(planes.tails)))
        self._below: OrderedDict[int, torch.Tensor] = OrderedDict()  # by block of the CPU pool

    def begin_step(self, rows: Sequence[AttentionRow]) -> list[AttentionRow]:
        """The rows in parts, each within one block and with its tail. There are at least as many
        tails as parts: see `tails_for`.
        """
        size = self._planes.tails.shape[3]
        given = [self._begin(part) for row in rows for part in in_blocks(row, size)]
        # Those that end with a full block need theirs in this step only.
        self._free += [part.tail for part in given if part.end % size == 0]
        return given

    def copy(self, copies: Copies) -> None:
        """Blocks were copied inside the pool."""
        for source, destination in copies:
            self._forget(destination)
            if source in self._tails:
                slot, count = self._take(keep=source), self._tails[source].filled
                self._planes.tails[slot] = self._planes.tails[self._tails[source].slot]
                self._tails[destination] = _Tail(slot, count)

    def copy_down(self, copies: Copies) -> None:
        """Blocks are about to be copied to the CPU pool, where they hold all that a reader needs
        who does not come back for the keys.
        """
        for source, destination in copies:
            self._below.pop(destination, None)
            if (tail := self._tails.get(source)) is not None:
                self._planes.close(source, *tail)
                self._below[destination] = self._keys(*tail).cpu().clone()
                if len(self._below) > len(self._planes.tails):
                    self._below.popitem(last=False)

    def copy_up(self, copies: Copies) -> None:
        """Blocks of the CPU pool are about to be copied into this one."""
        for source, destination in copies:
            self._forget(destination)
            if (keys := self._below.pop(source, None)) is not None:
                tail = _Tail(self._take(), keys.shape[2])
                self._keys(*tail).copy_(keys)
                self._tails[destination] = tail

    def _keys(self, slot: int, filled: int) -> torch.Tensor:
        return self._planes.tails[slot, :, :, :filled]

    def _forget(self, block: int) -> None:
        """Its content is replaced."""
        if (tail := self._tails.pop(block, None)) is not None:
            self._free.append(tail.slot)

    def _begin(self, part: AttentionRow) -> AttentionRow:
        size = self._planes.tails.shape[3]
        index, filled = divmod(part.start, size)
        block = part.block_table[index]
        slot = self._open(block, filled) if filled else self._take()
        self._forget(block)
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

"""A step as the Triton kernels read it: tables, lengths and slots of all its rows, made once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.attention_plan import AttentionRow
from kernels.kv_pool import KvPool

TABLE_STEP = 16
"""Tables are as wide as a multiple of it: Triton compiles a kernel anew for strides that are not
divisible by 16, and would do so between two steps.
"""


class StepArrays(NamedTuple):
    """On the host. Rows follow one another, and so do their tokens."""

    positions: NDArray[np.int64]  # [tokens]
    slots: NDArray[np.int64]  # [2, tokens]: block and slot of each
    tails: NDArray[np.int64]  # [tokens]: of each token's row, of an int4 pool
    tables: NDArray[np.int32]  # [rows, blocks], padded with the null block
    lengths: NDArray[np.int32]  # [rows]: tokens of each sequence, the new ones among them
    starts: NDArray[np.int32]  # [rows + 1]: where the tokens of each row begin

    @property
    def decodes(self) -> bool:
        """Whether each row has one token."""
        return len(self.positions) == len(self.lengths)

    @staticmethod
    def table_width(blocks: int) -> int:
        """Of tables for rows of so many blocks."""
        return -(-blocks // TABLE_STEP) * TABLE_STEP

    @classmethod
    def of(cls, rows: Sequence[AttentionRow], block_size: int) -> "StepArrays":
        """`rows` in the order of the flattened tokens, each with one at least."""
        firsts = np.array([row.start for row in rows], dtype=np.int64)
        ends = np.array([row.end for row in rows], dtype=np.int64)
        used = -(-ends // block_size)
        tables = np.zeros((len(rows), cls.table_width(int(used.max()))), dtype=np.int32)
        for table, row, count in zip(tables, rows, used, strict=True):
            table[:count] = row.block_table[:count]
        starts = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum(ends - firsts, out=starts[1:])
        row_of = np.repeat(np.arange(len(rows)), ends - firsts)
        positions = np.arange(starts[-1]) + (firsts - starts[:-1])[row_of]
        slots = np.stack((tables[row_of, positions // block_size], positions % block_size))
        tails = np.array([row.tail for row in rows], dtype=np.int64)[row_of]
        return cls(positions, slots.astype(np.int64), tails, tables, ends.astype(np.int32), starts)

    def padded(self, rows: int) -> "StepArrays":
        """A decode step with so many rows. Those that are added read nothing, and write to the
        null block and to no tail.
        """
        assert self.decodes, "a row with several tokens has no place in a padded batch"
        more = rows - len(self.lengths)
        return StepArrays(
            np.pad(self.positions, (0, more)),
            np.pad(self.slots, ((0, 0), (0, more))),
            np.pad(self.tails, (0, more), constant_values=-1),
            np.pad(self.tables, ((0, more), (0, 0))),
            np.pad(self.lengths, (0, more)),
            np.arange(rows + 1, dtype=np.int32),
        )


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The same on the pool's device. A CUDA graph reads them where they are: they may be filled
    again for another step of as many rows.
    """

    slots: torch.Tensor
    tables: torch.Tensor  # may be wider than any row needs
    lengths: torch.Tensor
    starts: torch.Tensor | None  # None: each row has one token
    num_splits: int = 1  # of a decode step; see `splits_for`
    tails: torch.Tensor | None = None  # [tokens]; None: the pool has none

    @classmethod
    def of(cls, arrays: StepArrays, num_splits: int, pool: KvPool) -> "StepTensors":
        device = pool.raw.device
        return cls(
            slots=to_device(arrays.slots, device),
            tables=to_device(arrays.tables, device),
            lengths=to_device(arrays.lengths, device),
            starts=None if arrays.decodes else to_device(arrays.starts, device),
            num_splits=num_splits,
            tails=None if pool.int4 is None else to_device(arrays.tails, device),
        )


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy that nobody waits for: from pinned memory, which torch keeps until it was read."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)

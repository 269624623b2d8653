"""Decode steps as CUDA graphs: their hundreds of launches become one."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cache_node.model.llama import LlamaModel, StepInputs
from cache_node.step_plan import Row
from kernels.kv_pool import KvPool
from kernels.triton.step import TritonStep, decode_splits
from kernels.triton.step_arrays import StepArrays, StepTensors, to_device

Replay = Callable[[], torch.Tensor]
"""Computes a step from its inputs as they are; the hidden states of all rows."""


def graph_sizes(max_num_seqs: int) -> list[int]:
    """Numbers of rows to capture a step for: the powers of two below `max_num_seqs`, and that."""
    powers = [1 << i for i in range(max_num_seqs.bit_length())]
    return [size for size in powers if size < max_num_seqs] + [max_num_seqs]


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """The inputs of one graph, where it reads them: they are filled anew for each step."""

    integers: torch.Tensor  # [5, rows] int64: tokens, positions, blocks, slots, tails
    tables: torch.Tensor
    lengths: torch.Tensor

    @classmethod
    def empty(cls, rows: int, blocks: int, device: torch.device) -> "DecodeBatch":
        """Of padding alone, with tables for so many blocks."""
        integers = torch.zeros((5, rows), dtype=torch.int64, device=device)
        integers[4] = -1
        return cls(
            integers=integers,
            tables=torch.zeros((rows, blocks), dtype=torch.int32, device=device),
            lengths=torch.zeros(rows, dtype=torch.int32, device=device),
        )

    def fill(self, tokens: NDArray[np.int64], arrays: StepArrays) -> None:
        """With a step of as many rows or fewer. Columns of the tables that no row needs are left
        as they are.
        """
        size, device = len(self.lengths), self.lengths.device
        arrays = arrays.padded(size)
        tokens = np.pad(tokens, (0, size - len(tokens)))
        integers = np.stack((tokens, arrays.positions, *arrays.slots, arrays.tails))
        self.integers.copy_(to_device(integers, device))
        self.lengths.copy_(to_device(arrays.lengths, device))
        self.tables[:, : arrays.tables.shape[1]].copy_(to_device(arrays.tables, device))


@dataclass(frozen=True, slots=True)
class _Captured:
    batch: DecodeBatch
    step: Replay  # owns what the graph reads beside the batch
    replay: Replay


class DecodeGraphs:
    """Owns a graph and its inputs for each size. A step with fewer rows is padded up to the next
    size: the rows that are added read no key, and write to the null block.

    All graphs share one memory: the result of a step is gone when the next one runs.
    """

    def __init__(
        self, model: LlamaModel, pool: KvPool, sizes: Sequence[int], max_tokens: int
    ) -> None:
        """`sizes` ascend; `max_tokens` is the longest that a sequence may become."""
        self._model = model
        self._pool = pool
        self._sizes = sizes
        self._max_tokens = max_tokens
        self._captured: dict[int, _Captured] = {}

    def capture(self) -> None:
        """On the current stream, the largest first, so that the others fit into its memory."""
        memory = torch.cuda.graph_pool_handle() if self._device.type == "cuda" else None
        for size in reversed(self._sizes):
            blocks = self._pool.layout.blocks_for(self._max_tokens)
            width = StepArrays.table_width(blocks)
            batch = DecodeBatch.empty(size, width, self._device)
            step = self._step(batch)
            self._captured[size] = _Captured(batch, step, _capture(step, self._device, memory))

    def size_for(self, rows: Sequence[Row]) -> int | None:
        """The size that `rows` are padded to. None when they are no decode step, or too many."""
        if not self._captured or any(len(row.token_ids) != 1 for row in rows):
            return None
        place = bisect_left(self._sizes, len(rows))
        return self._sizes[place] if place < len(self._sizes) else None

    def run(self, tokens: NDArray[np.int64], arrays: StepArrays, size: int) -> torch.Tensor:
        """The hidden states of a decode step, [size, hidden_size]."""
        captured = self._captured[size]
        captured.batch.fill(tokens, arrays)
        return captured.replay()

    @property
    def _device(self) -> torch.device:
        return self._pool.raw.device

    def _step(self, batch: DecodeBatch) -> Replay:
        """What is captured."""
        model, config, size = self._model, self._model.config, len(batch.lengths)
        splits = decode_splits(self._pool, config.num_heads, size, self._max_tokens, config.windows)
        tokens, positions, *_, tails = batch.integers
        tensors = StepTensors(
            slots=batch.integers[2:4],
            tables=batch.tables,
            lengths=batch.lengths,
            starts=None,
            num_splits=splits,
            tails=None if self._pool.int4 is None else tails,
        )
        inputs = StepInputs(
            token_ids=tokens,
            positions=positions,
            kernels=TritonStep(self._pool, config.num_heads, model.dtype, tensors),
            logit_tokens=torch.arange(size, device=self._device),
        )
        return lambda: model.hidden(inputs)


def _capture(step: Replay, device: torch.device, memory: Any) -> Replay:
    """`step` as a graph. Triton's interpreter has none: there it is run each time."""
    if device.type == "cpu":
        return step
    step()  # compiles kernels and sets libraries up, which a capture must not
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, stream=torch.cuda.current_stream()):
        result = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay

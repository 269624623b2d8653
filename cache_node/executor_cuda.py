"""Runs step plans on a GPU, on the Triton kernels."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from cache_node.decode_graphs import DecodeGraphs
from cache_node.device_streams import Streams
from cache_node.executor import ModelExecutor
from cache_node.model.llama import LlamaModel, StepInputs
from cache_node.pinned_swap import PinnedSwapSpace
from cache_node.step_plan import BlockCopy, Row
from kernels.kv_pool import KvPool
from kernels.triton.block_copy import copy_blocks
from kernels.triton.step import TritonStep
from kernels.triton.step_arrays import StepArrays, to_device


class CudaExecutor(ModelExecutor):
    """All of a step runs on one stream, copies between the pools on two more (see
    `PinnedSwapSpace`). A step is over when the first has nothing left to do, and all that it
    offloads is in the CPU pool.

    The same code runs on the CPU in Triton's interpreter, for its tests, without graphs and
    streams.
    """

    greedy_on_device = True
    swap: PinnedSwapSpace

    def __init__(
        self,
        model: LlamaModel,
        pool: KvPool,
        num_cpu_blocks: int,
        graph_sizes: Sequence[int],
        max_tokens: int,
    ) -> None:
        """`num_cpu_blocks` counts the null block; `max_tokens` is the longest that a sequence may
        become. Decode steps have a graph for each of `graph_sizes` after `capture`.
        """
        self._streams = Streams(pool.raw.device)
        self._stream = self._streams.new()
        # Where weights and pool were made, and everything before them.
        self._stream.wait_stream(self._streams.current())
        swap = PinnedSwapSpace(pool.raw, num_cpu_blocks, self._streams, self._begin_load)
        super().__init__(model, pool, swap)
        self._graphs = DecodeGraphs(model, pool, graph_sizes, max_tokens)

    @torch.inference_mode()
    def capture(self) -> None:
        with self._computing():
            self._graphs.capture()

    @torch.inference_mode()
    def measure_copies(self) -> None:
        """Before anything is in the pools."""
        with self._computing():
            self.copy_bytes_per_second = self.swap.copy_speed()

    @contextmanager
    def _computing(self) -> Iterator[None]:
        with self._streams.on(self._stream):
            try:
                yield
            finally:  # after a fault as well: nothing may still write to blocks that are freed
                self._streams.wait(self._stream)
                self.swap.settle()

    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        copy_blocks(self.pool.raw, to_device(_columns(copies), self.device))

    def _hidden(self, rows: Sequence[Row], wanted: Sequence[int]) -> torch.Tensor:
        indices = to_device(np.array(wanted, dtype=np.int64), self.device)
        tokens = np.array([token for row in rows for token in row.token_ids], dtype=np.int64)
        arrays = StepArrays.of(self._attention_rows(rows), self.layout.block_size)
        size = self._graphs.size_for(rows)
        if size is not None:
            return self._graphs.run(tokens, arrays, size)[indices]
        config = self.model_config
        return self._model.hidden(
            StepInputs(
                token_ids=to_device(tokens, self.device),
                positions=to_device(arrays.positions, self.device),
                kernels=TritonStep.of(
                    self.pool, config.num_heads, arrays, self._model.dtype, config.windows
                ),
                logit_tokens=indices,
            )
        )


def _columns(copies: Sequence[BlockCopy]) -> "np.ndarray[tuple[int, int], np.dtype[np.int64]]":
    """[2, copies]: sources, destinations."""
    return np.array([[c.source for c in copies], [c.destination for c in copies]], dtype=np.int64)

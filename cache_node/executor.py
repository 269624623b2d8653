"""What the executors of all devices have in common: step plans through a model, over a pool."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from cache_node.model.llama import LlamaModel
from cache_node.model.model_config import ModelConfig
from cache_node.row_results import row_results, wanted_tokens
from cache_node.step_plan import BlockCopy, Row, RowResult, StepPlan
from cache_node.swap_space import SwapSpace, pairs
from kernels.attention_plan import AttentionRow
from kernels.kv_pool import KvPool
from kernels.open_blocks import OpenBlocks
from kernels.step import kernels_of


class ModelExecutor(ABC):
    """Owns the KV pool with the tails of its open blocks, the CPU pool below it and the model, on
    one device. One call at a time, as `Executor` says.
    """

    greedy_on_device = False
    """See `row_results`."""

    def __init__(self, model: LlamaModel, pool: KvPool, swap: SwapSpace) -> None:
        self.pool = pool
        self.layout = pool.layout
        self.num_blocks = len(pool.raw)  # of each pool, with its null block
        self.num_cpu_blocks = swap.num_blocks
        self.swap = swap
        self.copy_bytes_per_second = 0.0  # between the pools; 0 until it is measured
        self._model = model
        self._open = None if pool.int4 is None else OpenBlocks(pool.int4)

    @property
    def model_config(self) -> ModelConfig:
        return self._model.config

    @property
    def device(self) -> torch.device:
        return self.pool.raw.device

    @property
    def dtype(self) -> str:
        """Of weights and activations."""
        return "float32" if self._model.dtype == torch.float32 else "bfloat16"

    @property
    def attention_kernel(self) -> str:
        """Which one runs here."""
        return kernels_of(self.pool, self.model_config.num_heads, self._model.dtype)

    @property
    def weight_bytes(self) -> int:
        return self._model.weight_bytes

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[RowResult]:
        with self._computing():
            self._move_blocks(plan)
            if not plan.rows:
                return []
            hidden = self._hidden(plan.rows, wanted_tokens(plan.rows))
            return row_results(
                plan.rows,
                hidden,
                self._model.logits,
                self.model_config.vocab_size,
                greedy_there=self.greedy_on_device,
            )

    @torch.inference_mode()
    def logits(self, plan: StepPlan, rows: Sequence[int]) -> torch.Tensor:
        """Runs the plan's copies and rows, and returns what follows the last token of each of
        `rows`: [len(rows), vocab_size], float32.
        """
        ends = np.cumsum([len(row.token_ids) for row in plan.rows])
        with self._computing():
            self._move_blocks(plan)
            return self._forward(plan.rows, [int(ends[i]) - 1 for i in rows])

    @torch.inference_mode()
    def prompt_logits(self, row: Row) -> torch.Tensor:
        """Runs one row and returns the logits after each of its tokens: [tokens, vocab_size],
        float32.
        """
        with self._computing():
            return self._forward([row], range(len(row.token_ids)))

    def _forward(self, rows: Sequence[Row], wanted: Sequence[int]) -> torch.Tensor:
        if not rows:
            return torch.empty(0, self.model_config.vocab_size)
        return self._model.logits(self._hidden(rows, wanted))

    def _computing(self) -> AbstractContextManager[None]:
        """Around everything that a step does. What was computed is there when it ends."""
        return nullcontext()

    def _move_blocks(self, plan: StepPlan) -> None:
        """Runs the plan's offloads, then its copies."""
        if self._open is not None:
            self._open.copy_down(pairs(plan.offloads))
        self.swap.offload(plan.offloads)
        if plan.copies:
            self._copy_blocks(plan.copies)
        if self._open is not None:
            self._open.copy(pairs(plan.copies))

    @torch.inference_mode()
    def _begin_load(self, copies: Sequence[BlockCopy]) -> None:
        if self._open is not None:
            self._open.copy_up(pairs(copies))

    def _attention_rows(self, rows: Sequence[Row]) -> list[AttentionRow]:
        """Of an int4 pool in parts of one block each, with their tails."""
        whole = [AttentionRow(row.start, row.end, row.block_table) for row in rows]
        return whole if self._open is None else self._open.begin_step(whole)

    @abstractmethod
    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Inside the KV pool."""

    @abstractmethod
    def _hidden(self, rows: Sequence[Row], wanted: Sequence[int]) -> torch.Tensor:
        """Computes all rows; the states [len(wanted), hidden_size] of those of the flattened tokens
        that are `wanted`, as `LlamaModel.logits` takes them.
        """

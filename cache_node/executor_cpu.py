"""Runs step plans on the CPU, in plain torch."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch

from cache_node.config import NodeConfig
from cache_node.kv_scales import KvScales, kv_scales
from cache_node.model.llama import LlamaModel, StepInputs
from cache_node.model.model_config import ModelConfig
from cache_node.model.source import Progress
from cache_node.model.weights import Checkpoint
from cache_node.row_results import row_results, wanted_tokens
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import Row, RowResult, StepPlan
from cache_node.swap_space import SwapSpace
from kernels.attention_plan import AttentionRow
from kernels.block_copy import copy_blocks, copy_speed
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.open_blocks import OpenBlocks
from kernels.step import plan_step

SPARE_TAILS = 16
"""For blocks of requests that are not running; those of running ones always have a tail."""

DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class CpuExecutor:
    """Owns the KV pool and the model. One call at a time, as `Executor` says."""

    def __init__(self, model: LlamaModel, pool: KvPool, num_cpu_blocks: int = 1) -> None:
        """`pool` and `num_cpu_blocks` count the null block of each pool."""
        self.pool = pool
        self.layout = pool.layout
        self.num_blocks = len(pool.raw)
        self.num_cpu_blocks = num_cpu_blocks
        self.copy_bytes_per_second = 0.0  # between the pools; 0 until it is measured
        self._model = model
        self._open = None if pool.int4 is None else OpenBlocks(pool.int4)
        self.swap = SwapSpace(pool.raw, num_cpu_blocks, self._forget)

    @property
    def model_config(self) -> ModelConfig:
        return self._model.config

    @property
    def dtype(self) -> str:
        """Of weights and activations."""
        return "float32" if self._model.dtype == torch.float32 else "bfloat16"

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> list[RowResult]:
        self._move_blocks(plan)
        if not plan.rows:
            return []
        inputs = self._inputs(plan.rows, wanted_tokens(plan.rows))
        hidden = self._model.hidden(inputs)
        return row_results(plan.rows, hidden, self._model.logits, self.model_config.vocab_size)

    @torch.inference_mode()
    def logits(self, plan: StepPlan, rows: Sequence[int]) -> torch.Tensor:
        """Runs the plan's copies and rows, and returns what follows the last token of each of
        `rows`: [len(rows), vocab_size], float32.
        """
        self._move_blocks(plan)
        ends = np.cumsum([len(row.token_ids) for row in plan.rows])
        return self._forward(plan.rows, [int(ends[i]) - 1 for i in rows])

    @torch.inference_mode()
    def prompt_logits(self, row: Row) -> torch.Tensor:
        """Runs one row and returns the logits after each of its tokens: [tokens, vocab_size],
        float32.
        """
        return self._forward([row], range(len(row.token_ids)))

    def _move_blocks(self, plan: StepPlan) -> None:
        copies = [(copy.source, copy.destination) for copy in plan.copies]
        if self._open is not None:
            self._open.close(copy.source for copy in plan.offloads)
        self.swap.offload(plan.offloads)
        copy_blocks(self.pool.raw, copies)
        if self._open is not None:
            self._open.copy(copies)

    def _forget(self, blocks: Iterable[int]) -> None:
        if self._open is not None:
            self._open.forget(blocks)

    def _forward(self, rows: Sequence[Row], logit_tokens: Sequence[int]) -> torch.Tensor:
        if not rows:
            return torch.empty(0, self.model_config.vocab_size)
        return self._model.forward(self._inputs(rows, logit_tokens))

    def _inputs(self, rows: Sequence[Row], logit_tokens: Sequence[int]) -> StepInputs:
        attention_rows = [AttentionRow(r.start, r.end, r.block_table) for r in rows]
        if self._open is not None:
            attention_rows = self._open.begin_step(attention_rows)
        config = self.model_config
        return StepInputs(
            token_ids=torch.tensor([t for r in rows for t in r.token_ids], dtype=torch.int64),
            positions=torch.cat([torch.arange(r.start, r.end) for r in rows]),
            kernels=plan_step(
                self.pool, config.num_heads, attention_rows, self._model.dtype, config.windows
            ),
            logit_tokens=torch.tensor(list(logit_tokens), dtype=torch.int64),
        )


def load_executor(config: NodeConfig, directory: Path, progress: Progress) -> CpuExecutor:
    """Loads the model in `directory` (see `find_model`) and warms it up, calling `progress` with
    stages load and warm up.

    Sets the number of torch's threads for the whole process. Raises ValueError when the model is
    not supported, or `config` and model do not go together.
    """
    torch.set_num_threads(config.threads)
    progress("load", None)
    model_config = ModelConfig.from_directory(directory)
    model = LlamaModel(model_config, Checkpoint(directory), DTYPES[config.dtype])
    scales = kv_scales(directory, model, config.kv_cache_dtype, config.kv_scale_sample)
    layout = kv_layout(model_config, config)
    blocks = config.num_blocks or layout.num_blocks(config.kv_pool_bytes)
    cpu_blocks = 1 + int(config.swap_space * 2**30) // layout.bytes_per_block
    tails = None
    if config.kv_cache_dtype == "int4":
        tails = tail_slots(layout, config.max_num_seqs + SPARE_TAILS, model.dtype)
    executor = CpuExecutor(model, _make_pool(layout, blocks, scales, tails), cpu_blocks)
    progress("warm up", None)
    _warm_up(executor)
    executor.copy_bytes_per_second = copy_speed(layout.bytes_per_block)
    return executor


def kv_layout(model: ModelConfig, config: NodeConfig) -> KvLayout:
    own = str(DTYPES[config.dtype]).removeprefix("torch.")
    return KvLayout(
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        block_size=config.block_size,
        dtype=own if config.kv_cache_dtype == "auto" else config.kv_cache_dtype,
    )


def _make_pool(
    layout: KvLayout,
    num_blocks: int,
    scales: KvScales,
    tails: torch.Tensor | None,
) -> KvPool:
    try:
        return KvPool.zeros(layout, num_blocks, scales.heads, tails, scales.centres)
    except (MemoryError, ValueError) as error:  # more than there is, more than can be addressed
        size = layout.bytes_per_block * num_blocks
        raise ValueError(
            f"kv_cache_bytes: this machine cannot reserve {size} bytes for {num_blocks} blocks; "
            "give the pool less"
        ) from error


def _warm_up(executor: CpuExecutor) -> None:
    """The first step in a process is many times slower than the next. It scribbles on block 1,
    which is empty yet.
    """
    size, table = executor.layout.block_size, [1]
    spec = SampleSpec(SamplingParams(temperature=0.0), position=size)
    for row in (Row([0] * size, 0, table, [spec]), Row([0], size - 1, table, [spec])):
        executor.run(StepPlan([row]))

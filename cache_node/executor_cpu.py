"""Runs step plans on the CPU, on the C++ kernels or in plain torch."""

from collections.abc import Sequence

import torch

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.kv_scales import KvScales
from cache_node.model.llama import LlamaModel, StepInputs
from cache_node.open_tails import make_tails
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.sizing import cpu_pool_blocks, kv_blocks
from cache_node.step_plan import BlockCopy, Row, StepPlan
from cache_node.swap_space import SwapSpace
from kernels.block_copy import copy_blocks, copy_speed
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.step import plan_step


class CpuExecutor(ModelExecutor):
    def __init__(self, model: LlamaModel, pool: KvPool, num_cpu_blocks: int = 1) -> None:
        """`pool` and `num_cpu_blocks` count the null block of each pool."""
        space = torch.zeros((num_cpu_blocks, *pool.raw.shape[1:]), dtype=pool.raw.dtype)
        super().__init__(model, pool, SwapSpace(pool.raw, space, self._begin_load))

    def _copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        copy_blocks(self.pool.raw, [(copy.source, copy.destination) for copy in copies])

    def _hidden(self, rows: Sequence[Row], wanted: Sequence[int]) -> torch.Tensor:
        attention_rows = self._attention_rows(rows)
        config = self.model_config
        return self._model.hidden(
            StepInputs(
                token_ids=torch.tensor([t for r in rows for t in r.token_ids], dtype=torch.int64),
                positions=torch.cat([torch.arange(r.start, r.end) for r in rows]),
                kernels=plan_step(
                    self.pool, config.num_heads, attention_rows, self._model.dtype, config.windows
                ),
                logit_tokens=torch.tensor(list(wanted), dtype=torch.int64),
            )
        )


def make_cpu_executor(
    config: NodeConfig, model: LlamaModel, layout: KvLayout, scales: KvScales
) -> CpuExecutor:
    """With the pools that `config` asks for, warmed up. Raises ValueError where there is not as
    much memory.
    """
    tails = make_tails(config, layout, model)
    pool = _make_pool(layout, kv_blocks(config, layout), scales, tails)
    executor = CpuExecutor(model, pool, cpu_pool_blocks(config, layout))
    _warm_up(executor)
    executor.copy_bytes_per_second = copy_speed(layout.bytes_per_block)
    return executor


def _make_pool(
    layout: KvLayout,
    num_blocks: int,
    scales: KvScales,
    tails: torch.Tensor | None,
) -> KvPool:
    try:
        return KvPool.zeros(layout, num_blocks, scales.heads, tails, scales.centres)
    except MemoryError as error:
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

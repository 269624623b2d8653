"""The kernels of one engine step, as a model calls them, and who computes them."""

from collections.abc import Sequence
from typing import Protocol

import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.library import Library, load_library
from kernels.cpu.step import CpuStep
from kernels.kv_pool import KvPool
from kernels.torch_step import TorchStep


class StepKernels(Protocol):
    """KV writes and attention of one step, over a pool that the caller owns.

    Layers are computed in order, each placed before it is attended:

        query = step.place(layer, qkv, cos, sin, norm=None, epsilon=0.0)
        attended = step.attend(layer, query, params)
    """

    def place(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        """Norms and rotates the query and key heads, writes keys and values to their slots, and
        returns the queries [tokens, heads, head_dim] in the step's dtype.

        `qkv` is [tokens, (heads + 2 · kv_heads) · head_dim], float32, and is used up; `cos` and
        `sin` are [tokens, 1, head_dim] (see `rotate_`); `norm` [heads + kv_heads, head_dim].
        """

    def attend(self, layer: int, query: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        """As `kernels.attention.paged_attention`, which is the reference."""


def plan_step(
    pool: KvPool,
    num_heads: int,
    rows: Sequence[AttentionRow],
    dtype: torch.dtype,
    windows: Sequence[int | None] = (None,),
) -> StepKernels:
    """What depends on the step alone, made once for all layers. `rows` are in the order of the
    flattened tokens; `dtype`, float32 or bfloat16, is that of queries and results; `windows` are
    those that layers will ask for.
    """
    if pool.raw.device.type == "cuda":
        from kernels.triton.step import TritonStep
        from kernels.triton.step_arrays import StepArrays

        arrays = StepArrays.of(rows, pool.layout.block_size)
        return TritonStep.of(pool, num_heads, arrays, dtype, windows)
    library = _library(pool, num_heads, dtype)
    if library is not None:
        return CpuStep(library, pool, num_heads, rows)
    return TorchStep(pool, num_heads, rows, dtype, windows)


def kernels_of(pool: KvPool, num_heads: int, dtype: torch.dtype) -> str:
    """Which ones `plan_step` takes: triton, c++, or torch, the slow ones that need nothing."""
    if pool.raw.device.type == "cuda":
        return "triton"
    return "torch" if _library(pool, num_heads, dtype) is None else "c++"


def _library(pool: KvPool, num_heads: int, dtype: torch.dtype) -> Library | None:
    """The C++ kernels, where they are there and can do it."""
    return load_library() if CpuStep.computes(pool, num_heads, dtype) else None

"""A step on the Triton kernels: a launch a layer for all KV writes, and one for all attention. A
decode step with split keys needs two for attention, int4 two for writes.
"""

from collections.abc import Sequence
from functools import cache

import torch

from kernels.attention import AttentionParams
from kernels.kv_pool import KvPool
from kernels.torch_step import rotated_heads
from kernels.triton.decode import decode_attention, splits_for
from kernels.triton.kv_write import write_kv
from kernels.triton.prefill import prefill_attention
from kernels.triton.step_arrays import StepArrays, StepTensors

INTERPRETED = 4
"""Multiprocessors of the interpreter, so that it has keys to split as well."""


class TritonStep:
    """See `kernels.step.StepKernels`. Nothing here waits for the device, and what is launched
    depends on shapes alone: a CUDA graph of it serves every step that fills the same `tensors`.
    """

    def __init__(
        self, pool: KvPool, num_heads: int, dtype: torch.dtype, tensors: StepTensors
    ) -> None:
        self._pool = pool
        self._num_heads = num_heads
        self._dtype = dtype
        self._tensors = tensors

    @classmethod
    def of(
        cls,
        pool: KvPool,
        num_heads: int,
        arrays: StepArrays,
        dtype: torch.dtype,
        windows: Sequence[int | None],
    ) -> "TritonStep":
        """For one step. `windows` are those of the layers."""
        splits, lengths = 1, arrays.lengths
        if arrays.decodes:
            splits = decode_splits(pool, num_heads, len(lengths), int(lengths.max()), windows)
        tensors = StepTensors.of(arrays, splits, pool)
        return cls(pool, num_heads, dtype, tensors)

    def place(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        query, kv = rotated_heads(qkv, self._num_heads, self._pool, cos, sin, norm, epsilon)
        write_kv(self._pool, layer, self._tensors.slots, kv, self._tensors.tails)
        return query.to(self._dtype)

    def attend(self, layer: int, query: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        given, pool = self._tensors, self._pool
        where = (given.tables, given.lengths, params)
        if given.starts is not None:
            return prefill_attention(query, pool, layer, given.starts, *where, tails=given.tails)
        return decode_attention(query, pool, layer, *where, given.num_splits, tails=given.tails)


def decode_splits(
    pool: KvPool, num_heads: int, rows: int, longest: int, windows: Sequence[int | None]
) -> int:
    """As `splits_for`, for a step whose longest sequence has `longest` tokens."""
    reach = max(longest if window is None else min(window, longest) for window in windows)
    chip = multiprocessors(pool.raw.device)
    return splits_for(rows, num_heads, pool.layout.num_kv_heads, reach, chip)


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type == "cpu":
        return INTERPRETED
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count

"""A step on plain torch: the reference for other kernels, and what runs where there is none."""

from collections.abc import Sequence

import torch

from kernels.attention import AttentionParams, paged_attention
from kernels.attention_plan import AttentionRow, plan_attention
from kernels.kv_pool import KvPool, kv_slots
from kernels.norm import inverse_rms


class TorchStep:
    """See `kernels.step.StepKernels`."""

    def __init__(
        self,
        pool: KvPool,
        num_heads: int,
        rows: Sequence[AttentionRow],
        dtype: torch.dtype,
        windows: Sequence[int | None],
    ) -> None:
        self._pool = pool
        self._num_heads = num_heads
        self._dtype = dtype
        self._plan = plan_attention(pool.layout.block_size, rows, dtype, windows)
        self._rows = rows
        self._slots = None if pool.int4 else kv_slots(pool.layout.block_size, rows)

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
        if self._slots is None:
            self._pool.write_rows(layer, self._rows, kv)
        else:
            self._pool.write(layer, self._slots, kv)
        return query.to(self._dtype)

    def attend(self, layer: int, query: torch.Tensor, params: AttentionParams) -> torch.Tensor:
        return paged_attention(query, self._pool, layer, self._plan, params)


def rotated_heads(
    qkv: torch.Tensor,
    num_heads: int,
    pool: KvPool,
    cos: torch.Tensor,
    sin: torch.Tensor,
    norm: torch.Tensor | None,
    epsilon: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The arguments of `StepKernels.place`, normed and rotated in place: queries [tokens, heads,
    head_dim] and what is written to the pool [tokens, 2, kv_heads, head_dim], views of `qkv`.
    """
    layout = pool.layout
    heads = qkv.view(len(qkv), -1, layout.head_dim)
    rotated = heads[:, : num_heads + layout.num_kv_heads]
    if norm is not None:
        rotated.mul_(inverse_rms(rotated, epsilon)).mul_(norm)
    rotate_(rotated, cos, sin)
    kv = heads[:, num_heads:].view(len(qkv), 2, layout.num_kv_heads, layout.head_dim)
    return heads[:, :num_heads], kv


def rotate_(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotates `heads` [tokens, heads, head_dim] (float32) in place. With x = (a, b) split in
    halves, the rotated head is x · cos + (b, a) · sin, where `sin` holds −sin in its first half.
    """
    swapped = heads.roll(heads.shape[-1] // 2, dims=-1)
    heads.mul_(cos).addcmul_(swapped, sin)

"""A step on the C++ kernels: one call a layer for all KV writes, one for all attention."""

from array import array
from collections.abc import Sequence

import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.library import Library
from kernels.decoder_layer import Rotation

MAX_HEAD_DIM = 512  # the scratch memory in C++ is sized for these two
MAX_GROUP = 128  # query heads a KV head
NO_WINDOW = 1 << 62


class CpuStep:
    """See `kernels.step.StepKernels`. Unused slots may hold anything, NaN as well: they are never
    read into a result.
    """

    def __init__(
        self,
        library: Library,
        pool: torch.Tensor,
        num_heads: int,
        rows: Sequence[AttentionRow],
        threads: int | None = None,
    ) -> None:
        """`threads` are torch's if None."""
        row_spans = array("q")
        tables = array("i")
        for row in rows:
            row_spans.extend((row.start, row.end, len(tables)))
            tables.extend(row.block_table)
        self._library = library
        self._pool = pool
        self._num_heads = num_heads
        self._arrays = (row_spans, tables, array("q", _sizes(pool, num_heads)))
        spans, blocks, sizes = (a.buffer_info()[0] for a in self._arrays)
        self._before = (pool.data_ptr(), pool.dtype == torch.bfloat16, sizes)
        self._after = (len(rows), spans, blocks)
        self._threads = threads or library.threads()

    @staticmethod
    def computes(pool: torch.Tensor, num_heads: int) -> bool:
        _, _, _, kv_heads, _, head_dim = pool.shape
        return (
            pool.device.type == "cpu"
            and pool.dtype in (torch.bfloat16, torch.float32)
            and head_dim <= MAX_HEAD_DIM
            and num_heads // kv_heads <= MAX_GROUP
        )

    def place(
        self,
        layer: int,
        qkv: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        norm: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        shape = (qkv.shape[0], self._num_heads, self._pool.shape[5])
        query = torch.empty(shape, dtype=self._pool.dtype)
        self._library.place(
            *self._before, layer, *self._after, qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(),
            None if norm is None else norm.data_ptr(), epsilon, query.data_ptr(), self._threads,
        )  # fmt: skip
        return query

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        params: AttentionParams,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`out`, contiguous, takes the result if it is given."""
        query = query.contiguous()
        out = torch.empty_like(query) if out is None else out
        self._library.attention(
            *self._before, layer, *self._after, query.data_ptr(), out.data_ptr(), params.scale,
            params.window or NO_WINDOW, params.softcap or 0.0, self._threads,
        )  # fmt: skip
        return out

    def decode(self, decoder: int, residual: torch.Tensor, rotations: Sequence[Rotation]) -> None:
        """`Decoder.run` for the described `decoder` at that address (see decoder.py)."""
        addresses = array("Q", [part.data_ptr() for pair in rotations for part in pair])
        self._library.decoder(
            decoder, *self._before, *self._after, residual.shape[0], residual.data_ptr(),
            addresses.buffer_info()[0], self._threads,
        )  # fmt: skip


def _sizes(pool: torch.Tensor, num_heads: int) -> tuple[int, int, int, int, int]:
    _, layers, _, kv_heads, block_size, head_dim = pool.shape
    return layers, num_heads, kv_heads, block_size, head_dim

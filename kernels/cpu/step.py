"""A step on the C++ kernels: one call a layer for all KV writes, one for all attention."""

from array import array
from collections.abc import Sequence

import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.library import Library
from kernels.decoder_layer import Rotation
from kernels.kv_pool import KvPool

MAX_HEAD_DIM = 512  # the scratch memory in C++ is sized for these two
KINDS = {"float32": 0, "bfloat16": 1, "fp8": 2, "int8": 3, "int4": 4}  # of a pool; see paged.h
MAX_GROUP = 128  # query heads a KV head
NO_WINDOW = 1 << 62


class CpuStep:
    """See `kernels.step.StepKernels`. Unused slots may hold anything, NaN as well: they are never
    read into a result.
    """

    def __init__(
        self,
        library: Library,
        pool: KvPool,
        num_heads: int,
        rows: Sequence[AttentionRow],
        threads: int | None = None,
    ) -> None:
        """`threads` are torch's if None."""
        row_spans = array("q")
        tables = array("i")
        for row in rows:
            row_spans.extend((row.start, row.end, len(tables), row.tail))
            tables.extend(row.block_table)
        self._library = library
        self._pool = pool
        self._num_heads = num_heads
        self._arrays = (row_spans, tables, array("q", _sizes(pool, num_heads)))
        spans, blocks, sizes = (a.buffer_info()[0] for a in self._arrays)
        self._before = (pool.raw.data_ptr(), KINDS[pool.layout.dtype], sizes)
        self._after = (len(rows), spans, blocks)
        self._threads = threads or library.threads()

    @staticmethod
    def computes(pool: KvPool, num_heads: int, dtype: torch.dtype) -> bool:
        layout = pool.layout
        return (
            pool.raw.device.type == "cpu"
            and dtype == product_dtype(pool)
            and layout.head_dim <= MAX_HEAD_DIM
            and num_heads // layout.num_kv_heads <= MAX_GROUP
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
        shape = (qkv.shape[0], self._num_heads, self._pool.layout.head_dim)
        query = torch.empty(shape, dtype=product_dtype(self._pool))
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

    def decode(
        self,
        decoder: int,
        residual: torch.Tensor,
        rotations: Sequence[Rotation],
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """`Decoder.run` for the described `decoder` at that address (see decoder.py)."""
        addresses = array("Q", [part.data_ptr() for pair in rotations for part in pair])
        narrowed = self._library.decoder(
            decoder, *self._before, *self._after, residual.shape[0], residual.data_ptr(),
            addresses.buffer_info()[0], wanted.data_ptr(), len(wanted), self._threads,
        )  # fmt: skip
        return residual[: len(wanted)] if narrowed else residual[wanted]


def product_dtype(pool: KvPool) -> torch.dtype:
    """Of queries and results: quantised keys and values are multiplied as bfloat16."""
    return torch.float32 if pool.layout.dtype == "float32" else torch.bfloat16


def _sizes(pool: KvPool, num_heads: int) -> tuple[int, ...]:
    """PoolSizes of paged.h."""
    layout = pool.layout
    head_scales = 0 if pool.head_scales is None else pool.head_scales.data_ptr()
    centres = 0 if pool.centres is None else pool.centres.data_ptr()
    tails = 0 if pool.int4 is None else pool.int4.tails.data_ptr()
    return (
        layout.num_layers, num_heads, layout.num_kv_heads, layout.block_size, layout.head_dim,
        layout.bytes_per_block, layout.element_bytes, layout.codes_at, head_scales, centres,
        tails,
    )  # fmt: skip

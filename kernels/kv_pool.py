"""The memory of paged keys and values, and what its elements stand for."""

from collections.abc import Sequence

import torch

from kernels.attention_plan import AttentionRow
from kernels.huge_pages import map_pages
from kernels.kv_int4 import Int4Planes, lay_tails
from kernels.kv_layout import KvLayout

ELEMENTS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}
INT8_MAX, FP8_MAX = 127.0, 448.0


class KvPool:
    """Blocks of one layout, on the CPU or a GPU. A key or value is element · scale:

    elements     [blocks, layers, 2, kv_heads, block_size, head_dim], 2 for keys and values
    scales       [blocks, layers, 2, kv_heads, block_size] float16, for int8: of its token and head,
                 the largest magnitude / 127
    head_scales  [layers, 2, kv_heads] float32, for fp8: fixed before the first block is written
    centres      [layers, 2, kv_heads, head_dim] float32 or None: keys and values are stored less
                 these. A query's product with those of the keys is the same for all keys, so that
                 softmax does not see it; weights sum to 1, so that those of the values are added
                 to what attention found.
    int4         the parts of an int4 pool, which has no other elements and scales
    """

    def __init__(
        self,
        layout: KvLayout,
        raw: torch.Tensor,
        head_scales: torch.Tensor | None = None,
        tails: torch.Tensor | None = None,
        centres: torch.Tensor | None = None,
    ) -> None:
        """`raw` is uint8 [blocks, layout.bytes_per_block]; fp8 needs `head_scales`, int4 `tails`
        (see `tail_slots`).
        """
        assert (head_scales is not None) == (layout.dtype == "fp8"), "fp8 alone has head scales"
        assert (tails is not None) == (layout.dtype == "int4"), "int4 alone has tails"
        self.layout = layout
        self.raw = raw
        self.head_scales = head_scales
        self.centres = centres
        self.scales: torch.Tensor | None = None
        self.int4 = None if tails is None else Int4Planes(layout, raw, tails)
        if self.int4 is not None:
            self.elements = self.int4.elements
            return
        planes = (layout.num_layers, 2, layout.num_kv_heads, layout.block_size)
        elements = raw[:, : layout.element_bytes].view(ELEMENTS[layout.dtype])
        self.elements = elements.view(len(raw), *planes, layout.head_dim)
        if layout.num_scales:
            scales = raw[:, layout.element_bytes : layout.codes_at].view(torch.float16)
            self.scales = scales.view(len(raw), *planes)

    @classmethod
    def zeros(
        cls,
        layout: KvLayout,
        num_blocks: int,
        head_scales: torch.Tensor | None = None,
        tails: torch.Tensor | None = None,
        centres: torch.Tensor | None = None,
    ) -> "KvPool":
        """In memory of the CPU, so that no unused block holds a NaN. It is mapped on first use: an
        idle pool takes none. Vectors are whole cache lines there: where they begin within a line,
        decode attention takes 1.07 of the time. Raises MemoryError where there is not as
        much.
        """
        raw = map_pages(num_blocks * layout.bytes_per_block)
        return cls(layout, raw.view(num_blocks, -1), head_scales, tails, centres)

    def write_rows(self, layer: int, rows: Sequence[AttentionRow], kv: torch.Tensor) -> None:
        """Writes `kv` [tokens, 2, kv_heads, head_dim], float32, keys then values, of the rows' new
        tokens, which come in the rows' order.
        """
        if self.int4 is None:
            self.write(layer, kv_slots(self.layout.block_size, rows), kv)
            return
        if self.centres is not None:
            kv = kv - self.centres[layer]
        parts = torch.split(kv, [row.end - row.start for row in rows])
        for row, part in zip(rows, parts, strict=True):
            self.int4.write(layer, row, part)

    def write(self, layer: int, slots: torch.Tensor, kv: torch.Tensor) -> None:
        """As `write_rows`, to `slots` (see `kv_slots`); not for int4."""
        blocks, offsets = slots
        if self.centres is not None:
            kv = kv - self.centres[layer]
        at = (blocks, layer, slice(None), slice(None), offsets)
        if self.scales is not None:
            elements, scales = quantise_int8(kv)
            self.scales[at] = scales
        elif self.head_scales is not None:
            elements = quantise_fp8(kv, self.head_scales[layer, ..., None])
        else:
            elements = kv.to(self.elements.dtype)
        # As bytes: torch does not index fp8.
        _bytes(self.elements)[at] = _bytes(elements)

    def read(
        self,
        layer: int,
        table: torch.Tensor,
        rows: Sequence[AttentionRow],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """The blocks of `table` [batch, blocks], which are those of `rows`, as numbers: [2, batch,
        kv_heads, blocks · block_size, head_dim]. Keys are less their centres.
        """
        kv = self._read_stored(layer, table, rows, dtype)
        if self.centres is not None:
            kv[1] += self.centres[layer, 1].unsqueeze(1)
        return kv

    def _read_stored(
        self,
        layer: int,
        table: torch.Tensor,
        rows: Sequence[AttentionRow],
        dtype: torch.dtype,
    ) -> torch.Tensor:
        if self.int4 is not None:
            kv = self.int4.read(layer, table, dtype)
            lay_tails(kv[0], self.int4.tails, layer, rows)
            return kv
        if self.scales is None and self.head_scales is None and self.elements.is_contiguous():
            return self._gather(layer, table).to(dtype)
        found = _bytes(self.elements)[:, layer][table].view(self.elements.dtype).to(dtype)
        if self.scales is not None:
            found = found.mul_(self.scales[:, layer][table].unsqueeze(-1))
        elif self.head_scales is not None:
            found = found.mul_(self.head_scales[layer, ..., None, None])
        return found.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)

    def _gather(self, layer: int, table: torch.Tensor) -> torch.Tensor:
        """As `read`, of elements without scales, moved once: half the time."""
        planes = 2 * self.layout.num_kv_heads
        order = torch.arange(planes).view(2, 1, -1, 1)
        index = table[None, :, None, :] * (self.layout.num_layers * planes) + order
        rows = self.elements.view(-1, self.layout.block_size * self.layout.head_dim)
        found: torch.Tensor = rows[layer * planes :].index_select(0, index.flatten())
        return found.view(*index.shape[:3], -1, self.layout.head_dim)


def kv_slots(block_size: int, rows: Sequence[AttentionRow]) -> torch.Tensor:
    """Block and slot of each new token: int64 [2, tokens]."""
    return torch.cat([_slots(block_size, row) for row in rows], dim=1)


def _slots(block_size: int, row: AttentionRow) -> torch.Tensor:
    first = row.start // block_size
    table = row.block_table[first : -(-row.end // block_size)]
    positions = torch.arange(row.start, row.end)
    blocks = torch.tensor(table, dtype=torch.int64)[positions // block_size - first]
    return torch.stack((blocks, positions % block_size))


def quantise_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`x` [..., head_dim] float32 as int8 elements and float16 scales [...]; symmetric."""
    scales = (x.abs().amax(dim=-1) / INT8_MAX).half()
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
    elements = (x * inverse.unsqueeze(-1)).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
    return elements, scales


def quantise_fp8(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """`x` float32 as e4m3 elements of x / scales; what is too large becomes the largest."""
    return (x * (1 / scales)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def _bytes(elements: torch.Tensor) -> torch.Tensor:
    """fp8 as bytes, since torch neither indexes nor moves it; others as they are."""
    return elements.view(torch.uint8) if elements.element_size() == 1 else elements

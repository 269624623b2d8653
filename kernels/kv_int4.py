"""Keys and values in four bits: see `kernels.four_bits`.

Keys have a scale and a zero for each channel over the tokens of a block: channels differ far more
than tokens do (Liu et al., KIVI, arXiv:2402.02750). So a block's keys can only be quantised when it
is full; until then it is open, and they lie unquantised in a tail.

Values have a scale and a zero for each token. The value of a block's first token has four bits
more: the first token of a sequence gets most of the weight in many heads (Xiao et al.,
arXiv:2309.17453), so that its error is in every answer. SmolLM2's perplexity rises by 1.5 % with
these bits, by 3.8 % without.

A query reads the keys of its own block out of the tail, also when the step that wrote them has
filled the block. So it does not matter in what steps a sequence comes. Rows of a step therefore
end at the borders of blocks: see `OpenBlocks`.
"""

from collections.abc import Sequence

import torch

from kernels.attention_plan import AttentionRow
from kernels.four_bits import (
    FINE,
    FourBits,
    as_e5m3,
    as_half,
    from_e5m3,
    pack,
    quantise,
    quantise_finely,
    to_e5m3,
    unpack,
)
from kernels.kv_layout import KvLayout


class Int4Planes:
    """The parts of an int4 pool, as views:

    elements      [blocks, layers, 2, kv_heads, block_size, head_dim / 2] uint8
    value_scales  [blocks, layers, kv_heads, block_size] float16; value_zeros: int8
    key_scales    [blocks, layers, kv_heads, head_dim] uint8, e5m3; key_zeros: int8
    fine          [blocks, layers, kv_heads, head_dim / 2] uint8: of the first slot's value
    tails         [slots, layers, kv_heads, block_size, head_dim]: keys of open blocks
    """

    def __init__(self, layout: KvLayout, raw: torch.Tensor, tails: torch.Tensor) -> None:
        heads, size, dim = layout.num_kv_heads, layout.block_size, layout.head_dim
        vectors = (len(raw), layout.num_layers, 2, heads, size)
        self.elements = raw[:, : layout.element_bytes].view(*vectors, dim // 2)
        scales = raw[:, layout.element_bytes : layout.codes_at].view(torch.float16)
        self.value_scales = scales.view(len(raw), layout.num_layers, heads, size)
        codes = raw[:, layout.codes_at : layout.codes_at + layout.num_codes]
        parts = codes.view(len(raw), layout.num_layers, heads, -1)
        fine_at, value_zeros_at = 2 * dim, 2 * dim + dim // 2
        self.key_scales = parts[..., :dim]
        self.key_zeros = parts[..., dim:fine_at].view(torch.int8)
        self.fine = parts[..., fine_at:value_zeros_at]
        self.value_zeros = parts[..., value_zeros_at:].view(torch.int8)
        self.tails = tails

    def write(self, layer: int, row: AttentionRow, kv: torch.Tensor) -> None:
        """Writes `kv` [tokens, 2, kv_heads, head_dim], float32, of one row: values to their slots,
        keys to its tail, and if that makes the block full, quantised to the block as well.
        """
        size = self.tails.shape[3]
        block, first = row.block_table[row.start // size], row.start % size
        last = first + row.end - row.start
        self._write_values(block, layer, slice(first, last), kv[:, 1].transpose(0, 1))
        tail = self.tails[row.tail, layer]
        tail[:, first:last] = kv[:, 0].transpose(0, 1)
        if last == size:
            self._write_keys(block, slice(layer, layer + 1), tail[None])

    def read(self, layer: int, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `KvPool.read`; what it says of the keys of open blocks means nothing."""
        keys, values = unpack(self.elements[:, layer][table]).unbind(2)
        keys = keys + self.key_zeros[:, layer][table].unsqueeze(-2) / 2
        keys = keys * from_e5m3(self.key_scales[:, layer][table]).unsqueeze(-2)
        values[..., 0, :] += unpack(self.fine[:, layer][table]) / FINE
        values = values + self.value_zeros[:, layer][table].unsqueeze(-1) / 2
        values = values * self.value_scales[:, layer][table].float().unsqueeze(-1)
        both = torch.stack((keys, values)).to(dtype)  # [2, batch, blocks, kv_heads, slot, element]
        return both.transpose(2, 3).flatten(3, 4)

    def close(self, block: int, tail: int, count: int) -> None:
        """Quantises the first `count` keys of an open block as if it were full."""
        self._write_keys(block, slice(None), self.tails[tail, :, :, :count])

    def reopen(self, block: int, tail: int, count: int) -> None:
        """The opposite, as far as that goes: the keys come back as they were quantised."""
        keys = unpack(self.elements[block, :, 0, :, :count])
        keys = keys + self.key_zeros[block].unsqueeze(-2) / 2
        self.tails[tail, :, :, :count] = keys * from_e5m3(self.key_scales[block]).unsqueeze(-2)

    def _write_keys(self, block: int, layers: slice, keys: torch.Tensor) -> None:
        """`keys` [layers, kv_heads, count, head_dim]."""
        found = quantise(keys.float(), -2, as_e5m3)
        self.key_scales[block, layers] = to_e5m3(found.scales).squeeze(-2)
        self.key_zeros[block, layers] = found.zeros.squeeze(-2)
        self.elements[block, layers, 0, :, : keys.shape[2]] = pack(found.elements)

    def _write_values(self, block: int, layer: int, slots: slice, values: torch.Tensor) -> None:
        """`values` [kv_heads, slots, head_dim]."""
        if slots.start == 0:
            found, fine = quantise_finely(values[:, :1], as_half)
            self.fine[block, layer] = pack(fine).squeeze(-2)
            self._store_values(block, layer, slice(0, 1), found)
            slots, values = slice(1, slots.stop), values[:, 1:]
        self._store_values(block, layer, slots, quantise(values, -1, as_half))

    def _store_values(self, block: int, layer: int, slots: slice, found: FourBits) -> None:
        self.value_scales[block, layer, :, slots] = found.scales.squeeze(-1)
        self.value_zeros[block, layer, :, slots] = found.zeros.squeeze(-1)
        self.elements[block, layer, 1, :, slots] = pack(found.elements)


def tail_slots(layout: KvLayout, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for the keys of `count` open blocks."""
    shape = (count, layout.num_layers, layout.num_kv_heads, layout.block_size, layout.head_dim)
    return torch.zeros(shape, dtype=dtype)


def lay_tails(
    keys: torch.Tensor, tails: torch.Tensor, layer: int, rows: Sequence[AttentionRow]
) -> None:
    """Puts the keys of the rows' own blocks in their place in `keys` [rows, kv_heads, positions,
    head_dim].
    """
    size = tails.shape[3]
    for found, row in zip(keys, rows, strict=True):
        first = row.start // size * size
        found[:, first : row.end] = tails[row.tail, layer, :, : row.end - first]

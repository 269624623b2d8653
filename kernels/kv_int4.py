"""Keys and values in four bits. A number is (element + zero) · scale, elements are 0 to 15.

Keys have a scale and a zero for each channel over the tokens of a block: channels differ far more
than tokens do (Liu et al., KIVI, arXiv:2402.02750). So a block's keys can only be quantised when it
is full; until then it is open, and they lie unquantised in a tail. Values have theirs for each
token.
"""

from collections.abc import Sequence

import torch

from kernels.attention_plan import AttentionRow
from kernels.kv_layout import SCALE_BYTES, KvLayout

LARGEST, ZERO_LIMIT = 15, 127
PARTS = (0.9, 0.8, 0.7)  # of the range, tried beside all of it


class Int4Planes:
    """The parts of an int4 pool, as views:

    elements      [blocks, layers, 2, kv_heads, block_size, head_dim / 2] uint8
    key_scales    [blocks, layers, kv_heads, head_dim] float16; key_zeros: int8
    value_scales  [blocks, layers, kv_heads, block_size] float16; value_zeros: int8
    tails         [slots, layers, kv_heads, block_size, head_dim]: keys of open blocks
    """

    def __init__(self, layout: KvLayout, raw: torch.Tensor, tails: torch.Tensor) -> None:
        heads, size = layout.num_kv_heads, layout.block_size
        at, zeros_at = layout.element_bytes, layout.zeros_at
        shape = (len(raw), layout.num_layers, 2, heads, size, layout.head_dim // 2)
        self.elements = raw[:, :at].view(shape)
        scales = raw[:, at : at + SCALE_BYTES * layout.num_scales].view(torch.float16)
        zeros = raw[:, zeros_at : zeros_at + layout.num_scales].view(torch.int8)
        self.key_scales, self.value_scales = _split(scales, layout)
        self.key_zeros, self.value_zeros = _split(zeros, layout)
        self.tails = tails

    def write(self, layer: int, row: AttentionRow, kv: torch.Tensor) -> None:
        """Writes `kv` [tokens, 2, kv_heads, head_dim], float32, of one row: values to their slots,
        keys to the blocks that become full, the last ones to the row's tail.
        """
        size = self.tails.shape[3]
        self._write_values(layer, row, kv[:, 1])
        keys = kv[:, 0].to(self.tails.dtype)  # as a tail holds them, in whatever steps they come
        for index in range(row.start // size, -(-row.end // size)):
            first, last = max(row.start, index * size), min(row.end, (index + 1) * size)
            new = keys[first - row.start : last - row.start].transpose(0, 1)
            if last < (index + 1) * size:
                self.tails[row.tail, layer, :, first % size : first % size + last - first] = new
                continue
            old = self.tails[row.tail, layer, :, : first % size] if first % size else new[:, :0]
            block = row.block_table[index]
            self._write_keys(block, slice(layer, layer + 1), torch.cat((old, new), dim=1)[None])

    def read(self, layer: int, table: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """As `KvPool.read`; what it says of the keys of open blocks means nothing."""
        keys, values = _unpack(self.elements[:, layer][table]).unbind(2)
        keys = keys + self.key_zeros[:, layer][table].unsqueeze(-2)
        keys = keys * self.key_scales[:, layer][table].float().unsqueeze(-2)
        values = values + self.value_zeros[:, layer][table].unsqueeze(-1)
        values = values * self.value_scales[:, layer][table].float().unsqueeze(-1)
        both = torch.stack((keys, values)).to(dtype)  # [2, batch, blocks, kv_heads, slot, element]
        return both.transpose(2, 3).flatten(3, 4)

    def close(self, block: int, tail: int, count: int) -> None:
        """Quantises the first `count` keys of an open block as if it were full."""
        self._write_keys(block, slice(None), self.tails[tail, :, :, :count])

    def reopen(self, block: int, tail: int, count: int) -> None:
        """The opposite, as far as that goes: the keys come back as they were quantised."""
        keys = _unpack(self.elements[block, :, 0, :, :count])
        keys = keys + self.key_zeros[block].unsqueeze(-2)
        self.tails[tail, :, :, :count] = keys * self.key_scales[block].float().unsqueeze(-2)

    def _write_keys(self, block: int, layers: slice, keys: torch.Tensor) -> None:
        """`keys` [layers, kv_heads, count, head_dim]."""
        elements, scales, zeros = quantise_int4(keys.float(), dim=-2)
        self.key_scales[block, layers] = scales.squeeze(-2)
        self.key_zeros[block, layers] = zeros.squeeze(-2)
        self.elements[block, layers, 0, :, : keys.shape[2]] = _pack(elements)

    def _write_values(self, layer: int, row: AttentionRow, values: torch.Tensor) -> None:
        size = self.tails.shape[3]
        positions = torch.arange(row.start, row.end)
        blocks = torch.tensor(row.block_table)[positions // size]
        at = (blocks, layer, slice(None), positions % size)
        elements, scales, zeros = quantise_int4(values, dim=-1)
        self.value_scales[at] = scales.squeeze(-1)
        self.value_zeros[at] = zeros.squeeze(-1)
        self.elements[blocks, layer, 1, :, positions % size] = _pack(elements)


def quantise_int4(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`x`, float32, as elements uint8, and over `dim`, kept as 1, scales float16 and zeros int8.

    Of a few ranges that leave out more and more of the ends, the one with the least squared error.
    """
    low, high = x.amin(dim, keepdim=True), x.amax(dim, keepdim=True)
    middle, reach = (low + high) / 2, (high - low) / 2
    tries = [(low, high)] + [(middle - reach * p, middle + reach * p) for p in PARTS]
    found = [_between(x, *each) for each in tries]
    errors = [
        ((elements + zeros) * scales.float() - x).square().sum(dim, keepdim=True)
        for elements, scales, zeros in found
    ]
    best = torch.stack(errors).argmin(dim=0, keepdim=True)

    def pick(part: int) -> torch.Tensor:
        all_tries = torch.stack([each[part] for each in found])
        return all_tries.take_along_dim(best.expand_as(all_tries[:1]), dim=0).squeeze(0)

    return pick(0).to(torch.uint8), pick(1), pick(2).to(torch.int8)


def _between(
    x: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Elements and zeros in float32, with a scale that reaches from `low` to `high`."""
    largest = torch.maximum(low.abs(), high.abs())
    # The second bound keeps the zero in eight bits, where all numbers are far from 0.
    scales = torch.maximum((high - low) / LARGEST, largest / ZERO_LIMIT).half()
    inverse = torch.where(scales > 0, 1 / scales.float(), 0.0)
    zeros = (low * inverse).round().clamp(-ZERO_LIMIT, ZERO_LIMIT)
    return ((x * inverse).round() - zeros).clamp(0, LARGEST), scales, zeros


def tail_slots(layout: KvLayout, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for the keys of `count` open blocks."""
    shape = (count, layout.num_layers, layout.num_kv_heads, layout.block_size, layout.head_dim)
    return torch.zeros(shape, dtype=dtype)


def lay_tails(
    keys: torch.Tensor, tails: torch.Tensor, layer: int, rows: Sequence[AttentionRow]
) -> None:
    """Puts keys of open blocks in their place in `keys` [rows, kv_heads, positions, head_dim]."""
    size = tails.shape[3]
    for found, row in zip(keys, rows, strict=True):
        if row.end % size:
            first = row.end // size * size
            found[:, first : row.end] = tails[row.tail, layer, :, : row.end - first]


def _split(parts: torch.Tensor, layout: KvLayout) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of the keys and those of the values."""
    heads, size, dim = layout.num_kv_heads, layout.block_size, layout.head_dim
    by_layer = parts.view(len(parts), layout.num_layers, heads * (dim + size))
    keys, values = by_layer[..., : heads * dim], by_layer[..., heads * dim :]
    return keys.view(*keys.shape[:2], heads, dim), values.view(*values.shape[:2], heads, size)


def _pack(elements: torch.Tensor) -> torch.Tensor:
    low, high = elements.chunk(2, dim=-1)
    return low | (high << 4)


def _unpack(packed: torch.Tensor) -> torch.Tensor:
    """As float32."""
    return torch.cat((packed & 15, packed >> 4), dim=-1).float()

"""What the checks in Triton's interpreter share: drawn pools with poison around what is meant."""

import random
from contextlib import contextmanager
from copy import deepcopy

import pytest
import torch

from kernels.attention import paged_attention
from kernels.attention_plan import AttentionRow, plan_attention
from kernels.four_bits import to_e5m3
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.open_blocks import in_blocks
from tests.kernels.pools import fill
from tests.kernels.triton import bfloat16

bfloat16.repair()

GUARD, MARK = 512, 7.0
NAN = float("nan")
POISON = 255  # as bytes: a NaN in float32, float16, bfloat16 and e4m3
LAYERS, LAYER = 2, 1


@pytest.fixture
def generator(request):
    """Another one each run; its seed is in the output of a test that fails."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"{request.node.name}: seed {seed}")
    return torch.Generator().manual_seed(seed)


def empty_pool(
    blocks, kv_heads, block_size, head_dim, dtype, generator=None, num_tails=1, tails=torch.float32
) -> KvPool:
    """Of zeros, but for scales of heads and centres, which `generator` draws. `dtype` is one of a
    layout, with " centred" behind it if the pool has centres; or "float16", which is none of a
    layout, but the interpreter computes with it as a GPU does, unlike with bfloat16, whose memory
    it takes. An int4 pool has `num_tails`, in dtype `tails`.
    """
    dtype, _, centred = dtype.partition(" ")
    stored = "bfloat16" if dtype == "float16" else dtype
    layout = KvLayout(LAYERS, kv_heads, head_dim, block_size, stored)
    planes, scales, centres = (LAYERS, 2, kv_heads), None, None
    if dtype == "fp8":
        scales = 0.005 + 0.02 * torch.rand(planes, generator=generator)
    if centred:
        centres = torch.randn((*planes, head_dim), generator=generator)
    open_keys = tail_slots(layout, num_tails, tails) if dtype == "int4" else None
    pool = KvPool.zeros(layout, blocks, scales, open_keys, centres)
    if dtype == "float16":
        pool.elements = pool.elements.view(torch.float16)
    return pool


def twins(pool) -> list[KvPool]:
    """It and another of the same content."""
    return [pool, deepcopy(pool)]


def make_pool(
    blocks, kv_heads, block_size, head_dim, dtype, generator, num_tails=1, tails=torch.float32
) -> KvPool:
    """Full of numbers; see `empty_pool`."""
    pool = empty_pool(blocks, kv_heads, block_size, head_dim, dtype, generator, num_tails, tails)
    if pool.int4 is not None:
        _draw_int4(pool, generator)
    else:
        fill(pool, torch.randn(pool.elements.shape, generator=generator))
    return pool


def _draw_int4(pool, generator) -> None:
    """Elements, scales and zeros of all kinds, and unquantised keys."""
    int4 = pool.int4
    drawn = torch.randint(0, 256, pool.raw.shape, dtype=torch.uint8, generator=generator)
    pool.raw.copy_(drawn)
    scales = (int4.key_scales, int4.value_scales)
    key_scales, value_scales = (
        0.01 + 0.2 * torch.rand(part.shape, generator=generator) for part in scales
    )
    int4.key_scales.copy_(to_e5m3(key_scales))
    int4.value_scales.copy_(value_scales)
    for zeros in (int4.key_zeros, int4.value_zeros):
        zeros.copy_(torch.randint(-20, -9, zeros.shape, generator=generator))
    int4.tails.copy_(torch.randn(int4.tails.shape, generator=generator))


def make_rows(spans, block_size, generator) -> list[AttentionRow]:
    """Each row has blocks of its own, in no order. Block 0 belongs to none."""
    counts = [-(-end // block_size) for _, end in spans]
    ids = (torch.randperm(sum(counts), generator=generator) + 1).tolist()
    rows = zip(spans, counts, strict=True)
    return [AttentionRow(s, e, [ids.pop() for _ in range(n)]) for (s, e), n in rows]


def open_rows(rows, block_size, generator) -> list[AttentionRow]:
    """The same rows in parts, as those of an int4 pool come, with tails in no order."""
    parts = [part for row in rows for part in in_blocks(row, block_size)]
    tails = torch.randperm(len(parts), generator=generator).tolist()
    return [part._replace(tail=tail) for part, tail in zip(parts, tails, strict=True)]


def tails_of(rows, pool) -> torch.Tensor | None:
    """The tail of each token, int64."""
    if pool.int4 is None:
        return None
    return torch.tensor([row.tail for row in rows for _ in range(row.start, row.end)])


def padded_tables(rows) -> torch.Tensor:
    """[rows, blocks] int32, with an entry behind the end that no kernel may follow."""
    width = 1 + max(len(row.block_table) for row in rows)
    tables = [[*row.block_table, *([1 << 20] * (width - len(row.block_table)))] for row in rows]
    return torch.tensor(tables, dtype=torch.int32)


def reference(query, pool, rows, params) -> torch.Tensor:
    """`paged_attention` in float32."""
    plan = plan_attention(pool.layout.block_size, rows, torch.float32, [params.window])
    return paged_attention(query.float(), pool, LAYER, plan, params)


def poison_unseen(pool, rows, window) -> None:
    """NaN, as far as the dtype has one, in the other layer, in the null block, behind each row's
    last token, and before what the window of its first query shows.
    """
    size, layout = pool.layout.block_size, pool.layout
    seen = torch.zeros((len(pool.raw), size), dtype=torch.bool)
    for row in rows:
        for position in range(_first_seen(row, window), row.end):
            seen[row.block_table[position // size], position % size] = True
    blocks, slots = (~seen).nonzero().T
    pool.raw[:, layout.codes_at + layout.num_codes :] = POISON
    if pool.centres is not None:
        pool.centres[1 - LAYER] = NAN
        pool.centres[:, 0] = NAN  # of keys
    if pool.int4 is not None:
        _poison_int4(pool.int4, rows, window, blocks, slots)
        return
    for part, poison in _parts(pool):
        part[:, 1 - LAYER] = poison
        part[blocks, :, :, :, slots] = poison


def _first_seen(row, window):
    return 0 if window is None else max(0, row.start - window + 1)


def _parts(pool):
    elements = pool.elements
    if elements.element_size() == 1:
        # 127 as int8 is no NaN, but its scale is.
        yield elements.view(torch.uint8), 127
    else:
        yield elements, NAN
    if pool.scales is not None:
        yield pool.scales, NAN


def _poison_int4(int4, rows, window, blocks, slots) -> None:
    """Scales of keys know no NaN: they become huge in blocks that are no row's, or are open."""
    size = int4.tails.shape[3]
    int4.value_scales[:, 1 - LAYER] = NAN
    int4.value_scales[blocks, :, :, slots] = NAN
    tails = int4.tails.clone()
    int4.tails.fill_(NAN)
    closed = set()
    for row in rows:
        first, own = _first_seen(row, window), row.start // size
        closed.update(row.block_table[first // size : own])
        filled = slice(max(0, first - own * size), row.end - own * size)
        int4.tails[row.tail, LAYER, :, filled] = tails[row.tail, LAYER, :, filled]
    opened = [block for block in range(len(int4.elements)) if block not in closed]
    for codes in (int4.key_scales, int4.key_zeros.view(torch.uint8)):
        codes[:, 1 - LAYER] = 127
        codes[opened] = 127
    int4.key_scales[opened] = 255


@contextmanager
def guarded(shape, dtype):
    """A tensor full of NaN between guards that are looked at in the end."""
    buffer = torch.full((torch.Size(shape).numel() + 2 * GUARD,), MARK, dtype=dtype)
    yield buffer[GUARD:-GUARD].view(shape).fill_(NAN)
    assert (buffer[:GUARD] == MARK).all(), "wrote before the output"
    assert (buffer[-GUARD:] == MARK).all(), "wrote behind the output"

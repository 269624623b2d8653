"""What the checks in Triton's interpreter share: drawn pools with poison around what is meant."""

import random
from contextlib import contextmanager

import pytest
import torch

from kernels.attention import paged_attention
from kernels.attention_plan import AttentionRow, plan_attention
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from tests.kernels.pools import fill, numbers_of, pool_of
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


def empty_pool(blocks, kv_heads, block_size, head_dim, dtype, head_scales=None) -> KvPool:
    """Of zeros. "float16" is no dtype of a layout, but the interpreter computes with it as a GPU
    does, unlike with bfloat16, whose memory it takes.
    """
    stored = "bfloat16" if dtype == "float16" else dtype
    layout = KvLayout(LAYERS, kv_heads, head_dim, block_size, stored)
    pool = KvPool.zeros(layout, blocks, head_scales)
    if dtype == "float16":
        pool.elements = pool.elements.view(torch.float16)
    return pool


def drawn_scales(kv_heads, dtype, generator) -> torch.Tensor | None:
    """Of an fp8 pool's heads."""
    if dtype != "fp8":
        return None
    return 0.005 + 0.02 * torch.rand((LAYERS, 2, kv_heads), generator=generator)


def make_pool(blocks, kv_heads, block_size, head_dim, dtype, generator) -> KvPool:
    """Full of numbers."""
    scales = drawn_scales(kv_heads, dtype, generator)
    pool = empty_pool(blocks, kv_heads, block_size, head_dim, dtype, scales)
    shape = (blocks, LAYERS, 2, kv_heads, block_size, head_dim)
    fill(pool, torch.randn(shape, generator=generator))
    return pool


def make_rows(spans, block_size, generator) -> list[AttentionRow]:
    """Each row has blocks of its own, in no order. Block 0 belongs to none."""
    counts = [-(-end // block_size) for _, end in spans]
    ids = (torch.randperm(sum(counts), generator=generator) + 1).tolist()
    rows = zip(spans, counts, strict=True)
    return [AttentionRow(s, e, [ids.pop() for _ in range(n)]) for (s, e), n in rows]


def padded_tables(rows) -> torch.Tensor:
    """[rows, blocks] int32, with an entry behind the end that no kernel may follow."""
    width = 1 + max(len(row.block_table) for row in rows)
    tables = [[*row.block_table, *([1 << 20] * (width - len(row.block_table)))] for row in rows]
    return torch.tensor(tables, dtype=torch.int32)


def reference(query, pool, rows, params) -> torch.Tensor:
    """`paged_attention` in float32 over the numbers that the pool holds."""
    numbers = pool_of(numbers_of(pool))
    plan = plan_attention(pool.layout.block_size, rows, torch.float32, [params.window])
    return paged_attention(query.float(), numbers, LAYER, plan, params)


def poison_unseen(pool, rows, window) -> None:
    """NaN, as far as the dtype has one, in the other layer, in the null block, behind each row's
    last token, and before what the window of its first query shows.
    """
    size = pool.layout.block_size
    seen = torch.zeros((len(pool.raw), size), dtype=torch.bool)
    for row in rows:
        first = 0 if window is None else max(0, row.start - window + 1)
        for position in range(first, row.end):
            seen[row.block_table[position // size], position % size] = True
    blocks, slots = (~seen).nonzero().T
    for part, poison in _parts(pool):
        part[:, 1 - LAYER] = poison
        part[blocks, :, :, :, slots] = poison
    used = sum(part[0].numel() * part.element_size() for part, _ in _parts(pool))
    pool.raw[:, used:] = POISON


def _parts(pool):
    elements = pool.elements
    if elements.element_size() == 1:
        # 127 as int8 is no NaN, but its scale is.
        yield elements.view(torch.uint8), 127
    else:
        yield elements, NAN
    if pool.scales is not None:
        yield pool.scales, NAN


@contextmanager
def guarded(shape, dtype):
    """A tensor full of NaN between guards that are looked at in the end."""
    buffer = torch.full((torch.Size(shape).numel() + 2 * GUARD,), MARK, dtype=dtype)
    yield buffer[GUARD:-GUARD].view(shape).fill_(NAN)
    assert (buffer[:GUARD] == MARK).all(), "wrote before the output"
    assert (buffer[-GUARD:] == MARK).all(), "wrote behind the output"

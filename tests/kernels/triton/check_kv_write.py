"""KV writes in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.attention_plan import AttentionRow
from kernels.four_bits import from_e5m3
from kernels.kv_pool import FP8_MAX
from kernels.triton.kv_write import write_kv
from kernels.triton.step_arrays import StepArrays
from tests.kernels.pools import numbers_of
from tests.kernels.triton.fixtures import LAYER, POISON, empty_pool, twins

# KV dtype, dtype of new keys and values, KV heads, head_dim, block size, tokens
CASES = [
    ("float32", torch.float32, 2, 64, 16, 19),
    ("float32", torch.float16, 1, 80, 128, 3),
    ("float16", torch.float32, 3, 96, 8, 21),
    ("float16", torch.float16, 5, 128, 32, 7),
    ("bfloat16", torch.float32, 2, 64, 16, 33),
    ("bfloat16", torch.bfloat16, 1, 80, 8, 5),
    ("fp8", torch.float32, 2, 64, 8, 33),
    ("fp8", torch.float32, 1, 80, 16, 17),
    ("fp8", torch.bfloat16, 8, 128, 64, 5),
    ("fp8", torch.float32, 3, 256, 128, 9),
    ("int8", torch.float32, 2, 64, 16, 33),
    ("int8", torch.float32, 1, 96, 8, 17),
    ("int8", torch.float16, 9, 80, 48, 5),
    ("int8", torch.float32, 2, 256, 32, 9),
    ("float16 centred", torch.float32, 2, 64, 16, 9),
    ("fp8 centred", torch.float32, 5, 80, 16, 5),
    ("int8 centred", torch.bfloat16, 3, 96, 8, 9),
]
# Dtype of new keys and values, of tails, KV heads, head_dim, block size
INT4_CASES = [
    (torch.float32, torch.float32, 2, 64, 8, "int4"),
    (torch.float32, torch.bfloat16, 1, 80, 16, "int4 centred"),
    (torch.bfloat16, torch.bfloat16, 5, 96, 8, "int4"),
    (torch.float16, torch.float16, 1, 128, 48, "int4"),
    (torch.float32, torch.float16, 1, 256, 128, "int4 centred"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_byte_of_the_pool_is_the_reference(case, generator):
    kv_dtype, dtype, kv_heads, head_dim, block_size, tokens = case
    blocks = 2 + tokens // block_size
    found, expected = twins(empty_pool(blocks, kv_heads, block_size, head_dim, kv_dtype, generator))
    for pool in (found, expected):
        pool.raw.fill_(POISON)
    chosen = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    slots = torch.stack((chosen // block_size, chosen % block_size))
    # A part of wider rows, as a projection of queries, keys and values at once leaves them.
    wide = torch.randn((tokens, 3 + 2 * kv_heads, head_dim), generator=generator)
    wide *= 10 ** torch.randint(-5, 3, (tokens, 1, 1), generator=generator)  # all of e4m3
    wide[0] = 0.0
    kv = wide.to(dtype)[:, 3:].view(tokens, 2, kv_heads, head_dim)
    write_kv(found, LAYER, slots, kv)
    expected.write(LAYER, slots, kv.float())
    assert torch.equal(found.raw, expected.raw)


def test_fp8_rounds_as_torch_at_every_boundary():
    """All e4m3 numbers, what lies half-way between two, and the floats next to each."""
    bits = torch.arange(128, dtype=torch.uint8)[:-1]
    numbers = bits.view(torch.float8_e4m3fn).float()
    halves = (numbers[1:] + numbers[:-1]) / 2
    exact = torch.cat((numbers, halves, torch.tensor([FP8_MAX + 16, 1e30, torch.inf])))
    around = [exact, exact.nextafter(torch.tensor(torch.inf)), exact.nextafter(torch.tensor(-1.0))]
    values = torch.cat((*around, torch.tensor([torch.nan])))
    values = torch.cat((values, -values))
    values = torch.nn.functional.pad(values, (0, -len(values) % 128)).view(-1, 2, 1, 64)
    found, expected = twins(empty_pool(1, 1, 16, 64, "fp8"))
    for pool in (found, expected):
        pool.head_scales.fill_(1.0)
    slots = torch.stack((torch.zeros(len(values), dtype=torch.int64), torch.arange(len(values))))
    write_kv(found, LAYER, slots, values)
    expected.write(LAYER, slots, values)
    assert torch.equal(found.raw, expected.raw)


def test_int8_rounds_ties_to_even_and_scales_may_vanish(generator):
    values = torch.zeros((4, 2, 1, 64))
    values[0, 0, 0] = torch.arange(64) - 31.5
    values[0, 0, 0, 0] = 127.0  # a scale of 1
    values[1] = 1e-7 * torch.randn((2, 1, 64), generator=generator)  # a scale of 0
    values[2] = 1e-5 * torch.randn((2, 1, 64), generator=generator)  # a subnormal one
    found, expected = twins(empty_pool(1, 1, 16, 64, "int8"))
    slots = torch.tensor([[0] * 4, [3, 0, 9, 15]])
    write_kv(found, LAYER, slots, values)
    expected.write(LAYER, slots, values)
    assert torch.equal(found.raw, expected.raw)


def int4_write(case, generator):
    """A pool, rows that fill a block, open one, write to the middle of one, and fill one from its
    start, and their keys and values.
    """
    dtype, tail_dtype, kv_heads, head_dim, size, kv_dtype = case
    pool = empty_pool(8, kv_heads, size, head_dim, kv_dtype, generator, 6, tail_dtype)
    pool.raw.fill_(POISON)
    pool.int4.tails.copy_(torch.randn(pool.int4.tails.shape, generator=generator))
    rows = [AttentionRow(size - 3, size, [3], 2), AttentionRow(size, size + 2, [3, 1], 0)]
    rows += [AttentionRow(4, 5, [7], 5)] + [AttentionRow(0, size, [4], 3)] * (size <= 16)
    tokens = sum(row.end - row.start for row in rows)
    wide = torch.randn((tokens, 3 + 2 * kv_heads, head_dim), generator=generator)
    wide *= 10 ** torch.randint(-2, 2, (1, 1, head_dim), generator=generator)
    return pool, rows, wide.to(dtype)[:, 3:].view(tokens, 2, kv_heads, head_dim)


@pytest.mark.parametrize("case", INT4_CASES, ids=lambda case: "-".join(map(str, case)))
def test_int4_is_the_reference_up_to_one_rounding(case, generator):
    pool, rows, kv = int4_write(case, generator)
    found, expected = twins(pool)
    arrays = StepArrays.of(rows, pool.layout.block_size)
    slots, tails = torch.from_numpy(arrays.slots), torch.from_numpy(arrays.tails)
    write_kv(found, LAYER, slots, kv, tails)
    expected.write_rows(LAYER, rows, kv.float())
    assert_near(found, expected)


def assert_near(found, expected):
    """Two int4 pools."""
    assert torch.equal(found.int4.tails.view(torch.uint8), expected.int4.tails.view(torch.uint8))
    assert (found.raw != expected.raw).float().mean() < 0.001
    scales = from_e5m3(expected.int4.key_scales).unsqueeze(3), expected.int4.value_scales[..., None]
    for part, scale in enumerate(scales):
        numbers = [numbers_of(pool)[:, LAYER, part] for pool in (found, expected)]
        steps = (numbers[0] - numbers[1]).nan_to_num() / scale[:, LAYER].float()
        assert steps.nan_to_num().abs().max() <= 1.1, "more than one rounding, either way"


def test_int4_padding_leaves_all_tails_alone(generator):
    pool = empty_pool(2, 1, 8, 64, "int4", num_tails=2)
    between = pool.int4.tails.fill_(7.0)
    pool.int4.tails = between[1:]
    kv = torch.randn((2, 2, 1, 64), generator=generator)
    slots = torch.tensor([[1, 0], [3, 0]])
    write_kv(pool, LAYER, slots, kv, torch.tensor([0, -1]))
    assert torch.equal(between[1, LAYER, 0, 3], kv[0, 0, 0])
    between[1, LAYER, 0, 3] = 7.0
    assert (between == 7.0).all()

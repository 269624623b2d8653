"""KV writes in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.kv_pool import FP8_MAX
from kernels.triton.kv_write import write_kv
from tests.kernels.triton.fixtures import (
    LAYER,
    LAYERS,
    POISON,
    drawn_scales,
    empty_pool,
)

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
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_every_byte_of_the_pool_is_the_reference(case, generator):
    kv_dtype, dtype, kv_heads, head_dim, block_size, tokens = case
    blocks = 2 + tokens // block_size
    scales = drawn_scales(kv_heads, kv_dtype, generator)
    found, expected = (
        empty_pool(blocks, kv_heads, block_size, head_dim, kv_dtype, scales) for _ in range(2)
    )
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
    scales = torch.ones((LAYERS, 2, 1))
    found, expected = (empty_pool(1, 1, 16, 64, "fp8", scales) for _ in range(2))
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
    found, expected = (empty_pool(1, 1, 16, 64, "int8") for _ in range(2))
    slots = torch.tensor([[0] * 4, [3, 0, 9, 15]])
    write_kv(found, LAYER, slots, values)
    expected.write(LAYER, slots, values)
    assert torch.equal(found.raw, expected.raw)

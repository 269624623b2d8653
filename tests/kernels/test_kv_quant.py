"""Quantised keys and values: what they cost, and how far they are from the numbers."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.step import CpuStep
from kernels.kv_layout import KvLayout
from kernels.kv_pool import quantise_fp8, quantise_int8
from tests.kernels.cpu_libraries import every_architecture, library
from tests.kernels.pools import empty_pool, fill, numbers_of


@pytest.mark.parametrize(("dtype", "least"), [("fp8", 1.9), ("int8", 1.9)])
@pytest.mark.parametrize("block_size", [8, 16, 128])
def test_the_same_bytes_hold_twice_the_tokens_scales_included(dtype, least, block_size):
    plain, quantised = (KvLayout(30, 3, 64, block_size, each) for each in ("bfloat16", dtype))
    size = 1 << 30
    assert quantised.num_blocks(size) >= least * plain.num_blocks(size)


def test_g4_int8_with_an_outlier_channel_errs_by_half_a_step_of_its_own_token():
    draw = torch.Generator().manual_seed(1)
    x = torch.randn((500, 64), generator=draw)
    x[:250, 7] *= 100.0  # one channel, in half of the tokens
    elements, scales = quantise_int8(x)
    errors = (elements * scales.float().unsqueeze(-1) - x).abs().amax(dim=-1)
    steps = x.abs().amax(dim=-1) / 127
    assert (errors <= 0.51 * steps).all()
    assert errors[250:].max() < 0.02, "a token without outliers pays for those of another"


def test_int8_of_nothing_is_nothing():
    elements, scales = quantise_int8(torch.zeros(2, 8))
    assert elements.eq(0).all()
    assert scales.eq(0).all()


def test_fp8_takes_what_is_too_large_as_its_largest():
    found = quantise_fp8(torch.tensor([1e6, -1e6, 4.48]), torch.tensor(0.01)).float()
    assert found.tolist() == [448.0, -448.0, 448.0]


@every_architecture
def test_every_number_of_e4m3_is_read_as_torch_reads_it(architecture):
    every = torch.arange(256, dtype=torch.uint8)
    every = every[(every & 0x7F) != 0x7F]  # the two NaNs
    pool = empty_pool((2, 1, 2, 1, 1, 256), "fp8")
    pool.elements.view(torch.uint8)[1, 0, 1, 0, 0, : len(every)] = every
    step = CpuStep(library(architecture), pool, 1, [AttentionRow(0, 1, [1])], threads=1)
    found = step.attend(0, torch.ones((1, 1, 256), dtype=torch.bfloat16), AttentionParams(1.0))
    expected = every.view(torch.float8_e4m3fn).float() * pool.head_scales[0, 1, 0]
    torch.testing.assert_close(found[0, 0, : len(every)].float(), expected, rtol=2**-7, atol=1e-6)


@every_architecture
@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_g2_32k_quantised_keys_are_summed_as_exactly_as_1k(architecture, dtype):
    """Beside the numbers that the pool holds: what quantising costs does not grow with length."""
    draw = torch.Generator().manual_seed(3)
    numbers = torch.randn((2049, 1, 2, 1, 16, 64), generator=draw)
    numbers[:, :, 1] += 1.0  # a mean that lost weights would shift
    pool = empty_pool(numbers.shape, dtype)
    fill(pool, numbers)
    held = numbers_of(pool)
    query = torch.randn((1, 4, 64), generator=draw).to(torch.bfloat16)
    errors = []
    for length in (1024, 32768):
        row = AttentionRow(length - 1, length, [*range(1, 1 + length // 16)])
        step = CpuStep(library(architecture), pool, 4, [row], threads=1)
        found = step.attend(0, query, AttentionParams(0.125)).double()
        keys, values = (held[1 : 1 + length // 16, 0, i, 0].reshape(length, 64) for i in (0, 1))
        weights = (query[0].double() @ keys.double().T * 0.125).softmax(dim=-1)
        errors.append((found[0] - weights @ values.double()).abs().max().item())
    assert errors[1] <= max(errors[0], 2**-8), errors

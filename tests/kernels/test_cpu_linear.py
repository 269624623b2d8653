"""Packed linears and norms in C++ against torch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import norm
from kernels.cpu.linear import PackedLinear
from kernels.linear import TorchLinear
from tests.kernels.cpu_libraries import every_architecture, library

sizes = st.sampled_from([1, 2, 3, 4, 5, 15, 16, 17, 32, 33, 70])
outputs = st.sampled_from([2, 16, 24, 32, 48, 80, 100, 4096])
inputs = st.sampled_from([1, 8, 31, 32, 48, 64, 576])


def make_pair(architecture, num_outputs, num_inputs, biased, gated=False):
    """The same layer in float32 torch and in C++."""
    generator = torch.Generator().manual_seed(num_outputs + num_inputs)
    weight = torch.randn((num_outputs, num_inputs), generator=generator).to(torch.bfloat16)
    bias = torch.randn(num_outputs, generator=generator).to(torch.bfloat16) if biased else None
    packed = PackedLinear(library(architecture), weight, bias, gated=gated)
    return TorchLinear(weight.float(), None if bias is None else bias.float()), packed


def draw_x(tokens, num_inputs):
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn((tokens, num_inputs), generator=generator).to(torch.bfloat16)


@every_architecture
@settings(max_examples=25, deadline=None)
@given(tokens=sizes, num_outputs=outputs, num_inputs=inputs, biased=st.booleans())
def test_a_packed_linear_is_torchs(architecture, tokens, num_outputs, num_inputs, biased):
    reference, packed = make_pair(architecture, num_outputs, num_inputs, biased)
    x = draw_x(tokens, num_inputs)
    expected = reference.wide(x.float())
    tolerance = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(packed.wide(x), expected, **tolerance)
    residual = torch.ones_like(expected)
    packed.add_to(residual, x)
    torch.testing.assert_close(residual, expected + 1.0, **tolerance)


@every_architecture
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@settings(max_examples=12, deadline=None)
@given(tokens=sizes, num_outputs=outputs, num_inputs=inputs, biased=st.booleans())
def test_a_gated_linear_is_torchs(
    architecture, activation, tokens, num_outputs, num_inputs, biased
):
    reference, packed = make_pair(architecture, num_outputs, num_inputs, biased, gated=True)
    x = draw_x(tokens, num_inputs)
    found = packed.gated(x, activation)
    assert found.shape == (tokens, num_outputs // 2)
    assert found.is_contiguous()
    expected = reference.gated(x.float(), activation)
    torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=2e-3)


@every_architecture
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(48, 64), (50, 33)])
def test_rows_are_those_of_the_weight(architecture, num_outputs, num_inputs):
    reference, packed = make_pair(architecture, num_outputs, num_inputs, biased=False)
    ids = torch.tensor([0, num_outputs - 1, 17, 17])
    torch.testing.assert_close(packed.rows(ids), reference.rows(ids), rtol=0, atol=0)


@every_architecture
def test_threads_share_the_outputs(architecture, monkeypatch):
    reference, packed = make_pair(architecture, 4096, 64, biased=True)
    monkeypatch.setattr(type(packed._library), "threads", staticmethod(lambda: 3))
    x = draw_x(40, 64)
    torch.testing.assert_close(packed.wide(x), reference.wide(x.float()), rtol=1e-4, atol=1e-4)


@every_architecture
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_norm_is_torchs(architecture, dtype, monkeypatch):
    x, weight = torch.randn(20, 570), torch.randn(570)
    expected = torch.nn.functional.rms_norm(x, [570], weight, 1e-5).to(dtype)
    monkeypatch.setattr(norm, "load_library", lambda: library(architecture))
    found = norm.rms_norm(x, weight, 1e-5, dtype)
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-5)
    monkeypatch.setattr(norm, "load_library", lambda: None)
    torch.testing.assert_close(norm.rms_norm(x, weight, 1e-5, dtype), found, rtol=2**-7, atol=1e-5)

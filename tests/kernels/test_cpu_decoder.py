"""All layers in one C++ call against the same kernels one by one."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.decoder import CpuDecoder
from kernels.cpu.linear import PackedLinear
from kernels.cpu.step import CpuStep
from kernels.decoder_layer import DecoderLayer, DecoderParams
from kernels.layerwise_decoder import LayerwiseDecoder
from kernels.linear import TorchLinear
from tests.kernels.cpu_libraries import every_architecture, library
from tests.kernels.pools import pool_of

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 48, 80, 6, 2, 16, 8
QUERY, QKV = HEADS * HEAD_DIM, (HEADS + 2 * KV_HEADS) * HEAD_DIM
# A prompt, one behind cached tokens, and two that decode.
ROWS = (
    AttentionRow(0, 21, [3, 1, 4]),
    AttentionRow(5, 9, [5, 9]),
    AttentionRow(17, 18, [2, 6, 8]),
    AttentionRow(0, 1, [7]),
)
TOKENS = sum(row.end - row.start for row in ROWS)


def make_layers(architecture, *, gemma):
    """Of Llama's kind, or with everything that the families add."""
    draw = torch.Generator().manual_seed(5)

    def linear(outputs, inputs, gated=False):
        weight = torch.randn((outputs, inputs), generator=draw).div_(inputs**0.5).bfloat16()
        bias = torch.randn(outputs, generator=draw).bfloat16() if gemma else None
        return PackedLinear(library(architecture), weight, bias, gated=gated)

    def norm(*shape):
        return torch.rand(shape, generator=draw) + 0.5

    return [
        DecoderLayer(
            input_norm=norm(HIDDEN),
            qkv=linear(QKV, HIDDEN),
            head_norm=norm(HEADS + KV_HEADS, HEAD_DIM) if gemma else None,
            attention=AttentionParams(0.25, 6 if gemma and index else None, 5.0 if gemma else None),
            rope=index % 2 if gemma else 0,
            output=linear(HIDDEN, QUERY),
            output_norm=norm(HIDDEN) if gemma else None,
            mlp_norm=norm(HIDDEN),
            gate_up=linear(2 * INNER, HIDDEN, gated=True),
            down=linear(HIDDEN, INNER),
            down_norm=norm(HIDDEN) if gemma else None,
        )
        for index in range(3)
    ]


def rotation(frequency):
    positions = torch.cat([torch.arange(row.start, row.end) for row in ROWS])
    angles = torch.outer(positions.float(), frequency ** torch.arange(HEAD_DIM // 2).float())
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)


def run(make_decoder, layers, architecture, activation, wanted=None):
    """The wanted rows of the residual stream, and the pool, after one step of `ROWS`."""
    draw = torch.Generator().manual_seed(9)
    shape = (10, 3, 2, KV_HEADS, BLOCK_SIZE, HEAD_DIM)
    pool = pool_of(torch.randn(shape, generator=draw).bfloat16())
    residual = torch.randn((TOKENS, HIDDEN), generator=draw)
    decoder = make_decoder(layers, DecoderParams(1e-5, activation, torch.bfloat16))
    step = CpuStep(library(architecture), pool, HEADS, ROWS, threads=2)
    wanted = torch.arange(TOKENS) if wanted is None else torch.tensor(wanted, dtype=torch.int64)
    found = decoder.run(residual, [rotation(0.5), rotation(0.3)], step, wanted)
    return found, pool.elements


@every_architecture
@pytest.mark.parametrize("gemma", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_one_call_is_the_kernels_one_by_one(architecture, gemma, activation):
    layers = make_layers(architecture, gemma=gemma)
    assert CpuDecoder.computes(layers)
    expected, written = run(LayerwiseDecoder, layers, architecture, activation)
    found, pool = run(CpuDecoder, layers, architecture, activation)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(pool, written, rtol=2e-2, atol=2e-2)


@every_architecture
@pytest.mark.parametrize(
    "wanted", [[], [20], [20, 24, 25, 26], [24, 26], [3, 24], [24, 20], [26, 26]]
)
def test_what_is_not_wanted_changes_nothing(architecture, wanted):
    """Last tokens of rows, in order, are computed alone in the last layer; others are not."""
    layers = make_layers(architecture, gemma=True)
    expected, written = run(LayerwiseDecoder, layers, architecture, "silu", wanted)
    found, pool = run(CpuDecoder, layers, architecture, "silu", wanted)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(pool, written, rtol=2e-2, atol=2e-2)


def test_layers_that_are_not_packed_are_not_taken():
    packed = make_layers("native", gemma=False)
    plain = TorchLinear(torch.randn(QKV, HIDDEN))
    assert not CpuDecoder.computes([packed[0], packed[1]._replace(qkv=plain)])

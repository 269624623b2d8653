"""All layers in one call to the C++ kernels (see decoder.cpp)."""

import ctypes
from collections.abc import Sequence

import torch

from kernels.cpu.linear import BLOCK, GATES, PackedLinear
from kernels.cpu.step import NO_WINDOW, CpuStep
from kernels.decoder_layer import DecoderLayer, DecoderParams, Rotation
from kernels.layerwise_decoder import LayerwiseDecoder
from kernels.linear import Linear
from kernels.step import StepKernels


class _Packed(ctypes.Structure):
    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("outputs", ctypes.c_int64))


class _Layer(ctypes.Structure):
    _fields_ = (
        ("input_norm", ctypes.c_void_p),
        ("qkv", _Packed),
        ("head_norm", ctypes.c_void_p),
        ("output", _Packed),
        ("output_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
        ("gate_up", _Packed),
        ("down", _Packed),
        ("down_norm", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        ("rope", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    )


class _Decoder(ctypes.Structure):
    _fields_ = (
        ("layers", ctypes.POINTER(_Layer)),
        ("num_layers", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("epsilon", ctypes.c_float),
        ("gate", ctypes.c_int32),
    )


class CpuDecoder:
    """See `kernels.decoder.Decoder`. A step that other kernels compute goes layer by layer.

    Measured with SmolLM2-135M, one token behind 256, one thread: 0.8 of the time of a call for each
    kernel.
    """

    def __init__(self, layers: Sequence[DecoderLayer], params: DecoderParams) -> None:
        self._layerwise = LayerwiseDecoder(layers, params)  # keeps the weights alive
        described = (_Layer * len(layers))(*map(_describe, layers))
        down = _packed(layers[0].down)
        self._decoder = _Decoder(
            described, len(layers), down.outputs, down.inputs, params.epsilon,
            GATES[params.activation],
        )  # fmt: skip

    @staticmethod
    def computes(layers: Sequence[DecoderLayer]) -> bool:
        return all(
            isinstance(linear, PackedLinear) and linear.inputs % BLOCK == 0
            for layer in layers
            for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

    def run(
        self,
        residual: torch.Tensor,
        rotations: Sequence[Rotation],
        step: StepKernels,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        if isinstance(step, CpuStep):
            return step.decode(ctypes.addressof(self._decoder), residual, rotations, wanted)
        return self._layerwise.run(residual, rotations, step, wanted)


def _describe(layer: DecoderLayer) -> _Layer:
    return _Layer(
        input_norm=_address(layer.input_norm),
        qkv=_describe_linear(layer.qkv),
        head_norm=_address(layer.head_norm),
        output=_describe_linear(layer.output),
        output_norm=_address(layer.output_norm),
        mlp_norm=_address(layer.mlp_norm),
        gate_up=_describe_linear(layer.gate_up),
        down=_describe_linear(layer.down),
        down_norm=_address(layer.down_norm),
        window=layer.attention.window or NO_WINDOW,
        rope=layer.rope,
        scale=layer.attention.scale,
        softcap=layer.attention.softcap or 0.0,
    )


def _describe_linear(linear: Linear) -> _Packed:
    packed = _packed(linear)
    return _Packed(packed.weight_address, packed.bias_address, packed.outputs)


def _packed(linear: Linear) -> PackedLinear:
    assert isinstance(linear, PackedLinear)
    return linear


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()

"""A decoder's layers kernel by kernel: the reference, and for every dtype and device."""

from collections.abc import Sequence

import torch

from kernels.decoder_layer import DecoderLayer, DecoderParams, Rotation
from kernels.linear import Linear
from kernels.norm import inverse_rms, rms_norm
from kernels.step import StepKernels


class LayerwiseDecoder:
    """See `kernels.decoder.Decoder`."""

    def __init__(self, layers: Sequence[DecoderLayer], params: DecoderParams) -> None:
        self._layers = layers
        self._params = params

    def run(
        self,
        residual: torch.Tensor,
        rotations: Sequence[Rotation],
        step: StepKernels,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        params = self._params
        for index, layer in enumerate(self._layers):
            qkv = layer.qkv.wide(self._normed(residual, layer.input_norm))
            rotation = rotations[layer.rope]
            query = step.place(index, qkv, *rotation, layer.head_norm, params.epsilon)
            attended = step.attend(index, query, layer.attention)
            self._add(residual, layer.output, attended.flatten(1), layer.output_norm)
            x = self._normed(residual, layer.mlp_norm)
            gated = layer.gate_up.gated(x, params.activation)
            self._add(residual, layer.down, gated, layer.down_norm)
        return residual[wanted]

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self._params.epsilon, self._params.dtype)

    def _add(
        self, residual: torch.Tensor, linear: Linear, x: torch.Tensor, norm: torch.Tensor | None
    ) -> None:
        """Adds what `linear` makes of x, normed where the family does so, to `residual`."""
        if norm is None:
            linear.add_to(residual, x)
        else:
            output = linear.wide(x)
            residual.addcmul_(output * inverse_rms(output, self._params.epsilon), norm)

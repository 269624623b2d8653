"""The layers of a decoder over the paged pool, as a model runs them, and who computes them."""

from collections.abc import Sequence
from typing import Protocol

import torch

from kernels.cpu.decoder import CpuDecoder
from kernels.decoder_layer import DecoderLayer, DecoderParams, Rotation
from kernels.layerwise_decoder import LayerwiseDecoder
from kernels.step import StepKernels


class Decoder(Protocol):
    def run(
        self,
        residual: torch.Tensor,
        rotations: Sequence[Rotation],
        step: StepKernels,
        wanted: torch.Tensor,
    ) -> torch.Tensor:
        """Takes `residual` [tokens, hidden], float32 and contiguous, through all layers and returns
        the rows `wanted` [rows], int64; `residual` is used up. `rotations` has one for each rope;
        `step` was planned for these tokens.
        """


def make_decoder(layers: Sequence[DecoderLayer], params: DecoderParams) -> Decoder:
    """In one call to the C++ kernels where they can do it."""
    if CpuDecoder.computes(layers):
        return CpuDecoder(layers, params)
    return LayerwiseDecoder(layers, params)

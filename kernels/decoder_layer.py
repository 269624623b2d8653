"""What a decoder layer is made of."""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.attention import AttentionParams
from kernels.linear import Linear

Rotation = tuple[torch.Tensor, torch.Tensor]
"""cos and sin [tokens, 1, head_dim], float32, as `StepKernels.place` takes them."""


class DecoderLayer(NamedTuple):
    """Norms are float32, with the family's offset added; None where the family has none."""

    input_norm: torch.Tensor  # [hidden]
    qkv: Linear  # the heads of q, then k, then v
    head_norm: torch.Tensor | None  # [heads + kv_heads, head_dim]: of q, then k
    attention: AttentionParams
    rope: int  # which of the rotations
    output: Linear
    output_norm: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: Linear  # gated
    down: Linear
    down_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderParams:
    """What all layers have in common."""

    epsilon: float  # of the norms
    activation: str  # see `Linear.gated`
    dtype: torch.dtype  # of the weights, and of what is multiplied with them

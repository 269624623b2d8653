"""Linear layers for inference, their weights laid out for the CPU they are on, and what follows
them.
"""

from typing import Protocol

import torch
from torch.nn.functional import embedding, gelu, linear, silu

from kernels.cpu.library import load_library
from kernels.cpu.linear import PackedLinear

TOKENS_HINT = 32
"""How many tokens a call has: oneDNN picks a layout for that many. It is no limit."""


class Linear(Protocol):
    """x · weightᵀ + bias for x [tokens, inputs], contiguous, in the weight's dtype."""

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, outputs], float32."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        """Adds the result to `residual` [tokens, outputs], float32."""

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        """activation(gate) · up [tokens, outputs / 2] in the weight's dtype, for a layer made with
        `gated`, whose weight is gate over up. Activations are silu and gelu_pytorch_tanh.
        """

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, float32 [tokens, inputs]: the embedding that a head is tied to."""


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None = None, *, gated: bool = False
) -> Linear:
    """`weight` is [outputs, inputs], `bias` [outputs]. Where the weight is packed it is a copy."""
    library = load_library() if weight.device.type == "cpu" else None
    if library is not None and weight.dtype == torch.bfloat16:
        return PackedLinear(library, weight, bias, gated=gated)
    return TorchLinear(weight, bias)


class TorchLinear:
    """In torch. A bfloat16 weight is packed into oneDNN's layout where the CPU computes bfloat16:
    0.65 of the time at 1 to 32 tokens. The operators are private to torch, which is pinned for that
    reason.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        packs = (
            weight.device.type == "cpu"
            and weight.dtype == torch.bfloat16
            and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )
        reorder = torch.ops.mkldnn._reorder_linear_weight
        self._packed = reorder(weight, TOKENS_HINT) if packs else None
        self._weight = weight
        self._bias = bias

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x).float()

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        residual += self._call(x)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        gate, up = self._call(x).chunk(2, dim=-1)
        active = silu(gate) if activation == "silu" else gelu(gate, approximate="tanh")
        return active.mul_(up)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, self._weight).float()

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        if self._packed is None:
            return linear(x, self._weight, self._bias)
        pointwise = torch.ops.mkldnn._linear_pointwise
        result: torch.Tensor = pointwise(x, self._packed, self._bias, "none", [], "")
        return result

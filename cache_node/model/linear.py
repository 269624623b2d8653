"""A linear layer for inference, with its weight laid out for the CPU's matrix unit."""

import torch
from torch.nn.functional import linear

TOKENS_HINT = 32
"""How many tokens a call has: oneDNN picks a layout for that many. It is no limit."""


class Linear:
    """x · weightᵀ + bias for x [tokens, in], in the weight's dtype.

    A bfloat16 weight is packed once into oneDNN's blocked layout where the CPU computes bfloat16:
    measured with one thread over a whole model, a step then takes 0.65 of the time at 1 to 32
    tokens and 0.6 at 256. The operators are private to torch, which is pinned for that reason.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """`weight` is [out, in], `bias` [out]. Where the weight is packed it is a copy."""
        packs = weight.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        reorder = torch.ops.mkldnn._reorder_linear_weight
        self._packed = reorder(weight, TOKENS_HINT) if packs else None
        self._weight = None if packs else weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._weight is not None:
            return linear(x, self._weight, self._bias)
        pointwise = torch.ops.mkldnn._linear_pointwise
        result: torch.Tensor = pointwise(x, self._packed, self._bias, "none", [], "")
        return result

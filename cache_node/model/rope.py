"""Rotary position embedding (Su et al., arXiv:2104.09864), rotating the two halves of a head."""

import math
from typing import NamedTuple

import torch

from cache_node.model.layer_config import RopeConfig


class Rotation(NamedTuple):
    """Of the tokens of one step, float32, as `kernels.torch_step.rotate_` takes it: `sin` holds
    −sin in its first half.
    """

    cos: torch.Tensor  # [tokens, 1, head_dim]
    sin: torch.Tensor

    @classmethod
    def at(cls, positions: torch.Tensor, frequencies: torch.Tensor) -> "Rotation":
        """For `positions` [tokens] and `inverse_frequencies`. Not from a table: that of a model
        with a long context takes more memory than its computation takes time.
        """
        angles = torch.outer(positions.float(), frequencies)
        cos, sin = angles.cos(), angles.sin()
        return cls(
            torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)
        )


def inverse_frequencies(config: RopeConfig, head_dim: int) -> torch.Tensor:
    """θ^(−2i/d) for i < d/2 [head_dim // 2], float32, scaled as `rope_type` says."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (config.theta**exponents)
    if config.rope_type == "linear":
        return frequencies / config.factor
    if config.rope_type == "llama3":
        return _llama3(config, frequencies)
    return frequencies


def _llama3(config: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3.1's scaling: long waves are stretched by `factor`, short ones kept, those between
    blended linearly.
    """
    wavelengths = 2 * math.pi / frequencies
    turns = config.original_max_positions / wavelengths
    low, high = config.low_freq_factor, config.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - kept) * frequencies / config.factor + kept * frequencies

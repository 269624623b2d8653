"""RMSNorm (Zhang and Sennrich, arXiv:1910.07467): weight · x / √(mean(x²) + ε)."""

import torch
from torch.linalg import vector_norm

from kernels.cpu.library import load_library


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, epsilon: float, dtype: torch.dtype
) -> torch.Tensor:
    """`x` [tokens, size] and `weight` [size] are float32 and contiguous; the result is `dtype`,
    bfloat16 or float32.
    """
    library = load_library() if x.device.type == "cpu" else None
    if library is None:
        return (x * inverse_rms(x, epsilon)).mul_(weight).to(dtype)
    out = torch.empty(x.shape, dtype=dtype)
    library.rms_norm(
        x.data_ptr(), x.shape[0], x.shape[1], weight.data_ptr(), epsilon,
        dtype == torch.bfloat16, out.data_ptr(), library.threads(),
    )  # fmt: skip
    return out


def inverse_rms(x: torch.Tensor, epsilon: float) -> torch.Tensor:
    """1 / √(mean(x²) + ε) over the last dimension, which stays as 1. torch's own norm walks over x
    more often.
    """
    length: torch.Tensor = vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(epsilon).rsqrt_()

"""Repairs Triton's interpreter, for the checks alone: it keeps bfloat16 as integers, cuts where a
GPU rounds, converts integers to it as if they were its bits, and multiplies those as matrices.

Kernels compute in float32 and only load, store, convert and multiply matrices of bfloat16; these
are repaired with torch's casts. Sums and products of bfloat16 stay wrong.
"""

import numpy as np
import torch
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

_cast, _dot, _round = (
    InterpreterBuilder.cast_impl,
    InterpreterBuilder.create_dot,
    InterpreterBuilder.create_fp_to_fp,
)


def repair() -> None:
    InterpreterBuilder.cast_impl = _repaired_cast
    InterpreterBuilder.create_fp_to_fp = _repaired_round
    InterpreterBuilder.create_dot = _repaired_dot


def _repaired_cast(builder, source, dtype):
    if tl.bfloat16 not in (source.dtype.scalar, dtype.scalar):
        return _cast(builder, source, dtype)
    if dtype.scalar == tl.bfloat16:
        return TensorHandle(_narrowed(_floats(source)), tl.bfloat16)
    return _cast(builder, TensorHandle(_floats(source), tl.float32), dtype)


def _repaired_round(builder, source, dtype, mode):
    if tl.bfloat16 in (source.dtype.scalar, dtype.scalar):
        return _repaired_cast(builder, source, dtype)
    return _round(builder, source, dtype, mode)


def _repaired_dot(builder, a, b, d, *options):
    wide = [TensorHandle(_floats(x), tl.float32) for x in (a, b)]
    return _dot(builder, *(wide if a.dtype.scalar == tl.bfloat16 else (a, b)), d, *options)


def _floats(handle):
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data.astype(np.float32)
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def _narrowed(floats):
    rounded = torch.from_numpy(np.ascontiguousarray(floats)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16).reshape(floats.shape)

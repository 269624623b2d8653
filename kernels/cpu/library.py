"""The compiled kernels as Python functions."""

import ctypes
import logging
from functools import cache
from pathlib import Path

# Before the library, which then finds torch's OpenMP runtime loaded under the same name and shares
# its threads.
import torch

from kernels.cpu.build import BuildError, build_library

log = logging.getLogger(__name__)

_POINTER, _INT64, _INT32, _FLOAT = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_float,
)
# pool, kind, sizes, layer, rows, spans, tables
_PAGED = [_POINTER, _INT32, _POINTER, _INT64, _INT64, _POINTER, _POINTER]
_SIGNATURES = {
    "attention": [*_PAGED, _POINTER, _POINTER, _FLOAT, _INT64, _FLOAT, _INT32],
    "place": [*_PAGED, _POINTER, _POINTER, _POINTER, _POINTER, _FLOAT, _POINTER, _INT32],
    "rms_norm": [_POINTER, _INT64, _INT64, _POINTER, _FLOAT, _INT32, _POINTER, _INT32],
    "linear": [
        _POINTER, _INT64, _INT64, _POINTER, _INT64, _POINTER, _INT32, _POINTER, _INT32,
    ],
    # decoder, pool, kind, sizes, rows, spans, tables, tokens, residual, rotations, wanted, their
    # number, threads
    "decoder": [
        _POINTER, _POINTER, _INT32, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER,
        _POINTER, _POINTER, _INT64, _INT32,
    ],
}  # fmt: skip


class Library:
    """Functions over raw addresses; the parameters are described in the C++ files.

    A call releases the GIL. Nothing is checked here: callers pass contiguous tensors of the right
    type and keep them alive.
    """

    def __init__(self, path: Path) -> None:
        functions = ctypes.CDLL(str(path))
        for name, parameters in _SIGNATURES.items():
            function = getattr(functions, f"kvmesh_{name}")
            function.argtypes = parameters
            function.restype = _INT32 if name == "decoder" else None
        self.attention = functions.kvmesh_attention
        self.place = functions.kvmesh_place
        self.rms_norm = functions.kvmesh_rms_norm
        self.linear = functions.kvmesh_linear
        self.decoder = functions.kvmesh_decoder

    @staticmethod
    def threads() -> int:
        return torch.get_num_threads()


@cache
def load_library() -> Library | None:
    """The library for this CPU, or None after one line in the log that says why not."""
    try:
        return Library(build_library())
    except (BuildError, OSError) as error:
        log.warning("CPU kernels: running on torch, several times slower: %s", error)
        return None

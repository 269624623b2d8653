"""Linear layers with bfloat16 weights in the C++ kernels' layout (see linear.h)."""

import torch

from kernels.cpu.library import Library
from kernels.huge_pages import WEIGHTS

BLOCK = 16  # outputs of a tile
DEPTH = 32  # inputs of a tile

# What follows a product; see api.h.
FLOAT32, ADD, GATES = 1, 2, {"silu": 3, "gelu_pytorch_tanh": 4}


class PackedLinear:
    """See `kernels.linear.Linear`. One layout serves one token and many: a step reads its weights
    once, at the speed of memory.

    Measured with one thread over a whole model, as a share of a linear read of the weights: 1.0 at
    one token, 0.86 at 8, 0.64 at 32. Beside torch's packed oneDNN operators: 1.2 to 1.9 times the
    speed up to 32 tokens, 0.7 to 1.3 at 512, where activations fused into ours are not counted.
    """

    def __init__(
        self, library: Library, weight: torch.Tensor, bias: torch.Tensor | None, *, gated: bool
    ) -> None:
        """`weight` is bfloat16 [outputs, inputs]; `gated` says that its upper half is the gate of
        the lower.
        """
        self._library = library
        self.inputs = weight.shape[1]
        self._result_size = len(weight) // 2 if gated else len(weight)
        self._bias = None if bias is None else bias.float()
        if gated:
            weight = _interleave(weight)
            self._bias = None if self._bias is None else _interleave(self._bias)
        self.outputs = len(weight)
        self._packed = WEIGHTS.copy(pack(weight))

    def wide(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty((x.shape[0], self.outputs))
        self._run(x, FLOAT32, out)
        return out

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        self._run(x, ADD, residual)

    def gated(self, x: torch.Tensor, activation: str) -> torch.Tensor:
        out = torch.empty((x.shape[0], self.outputs // 2), dtype=x.dtype)
        self._run(x, GATES[activation], out)
        return out[:, : self._result_size].contiguous()

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        tiles = self._packed[ids // BLOCK, :, :, ids % BLOCK]
        return tiles.reshape(len(ids), -1)[:, : self.inputs].float()

    @property
    def weight_address(self) -> int:
        return self._packed.data_ptr()

    @property
    def bias_address(self) -> int | None:
        return None if self._bias is None else self._bias.data_ptr()

    def _run(self, x: torch.Tensor, ending: int, out: torch.Tensor) -> None:
        self._library.linear(
            x.data_ptr(), x.shape[0], self.inputs, self.weight_address, self.outputs,
            self.bias_address, ending, out.data_ptr(), self._library.threads(),
        )  # fmt: skip


def pack(weight: torch.Tensor) -> torch.Tensor:
    """bfloat16 [outputs, inputs] as [outputs / 16, inputs / 32, 16, 16, 2], padded with zeros:
    tiles whose rows hold one pair of inputs for 16 outputs.
    """
    outputs, inputs = weight.shape
    blocks, depth = -(-outputs // BLOCK), -(-inputs // DEPTH)
    if outputs % BLOCK or inputs % DEPTH:
        padded = weight.new_zeros(blocks * BLOCK, depth * DEPTH)
        padded[:outputs, :inputs] = weight
        weight = padded
    pairs = weight.contiguous().view(torch.int32).view(blocks, BLOCK, depth, DEPTH // 2)
    tiles = pairs.permute(0, 2, 3, 1).contiguous()
    return tiles.view(torch.bfloat16).view(blocks, depth, DEPTH // 2, BLOCK, 2)


def _interleave(rows: torch.Tensor) -> torch.Tensor:
    """Gate over up [2 · n, …] as blocks of 16 rows in turns, each half padded to whole blocks."""
    half, rest = len(rows) // 2, rows.shape[1:]
    blocks = -(-half // BLOCK)
    halves = rows.new_zeros(2, blocks * BLOCK, *rest)
    halves[:, :half] = rows.view(2, half, *rest)
    return halves.view(2, blocks, BLOCK, *rest).transpose(0, 1).reshape(-1, *rest)

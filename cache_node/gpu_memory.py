"""How much of a card's memory is left for the KV pool."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """What a node found on its card, and takes of it beside the KV pool; bytes."""

    total: int
    free: int  # before the node loaded anything
    peak: int  # most that tensors took: the weights, and a step as large as there can be
    graphs: int  # what captured graphs keep for themselves
    outside: int  # what the node took past torch: kernels' code, libraries

    def kv_cache_bytes(self, utilization: float) -> int:
        """What is left of the node's share of the card. Several nodes may share one, so that what
        others use does not count, as long as the share is free. Raises ValueError otherwise.
        """
        share = int(self.total * utilization)
        if share > self.free:
            raise ValueError(
                f"gpu_memory_utilization: {utilization:g} of the card are {_gib(share)}, of which "
                f"others leave {_gib(self.free)}; lower it to {self.free / self.total:.2f} or less"
            )
        left = share - self.peak - self.graphs - self.outside
        if left <= 0:
            raise ValueError(
                f"gpu_memory_utilization: {utilization:g} of the card are {_gib(share)}; model and "
                f"activations take {_gib(share - left)}: raise it, or lower "
                "max_num_batched_tokens or max_num_seqs"
            )
        return left

    def as_log(self) -> dict[str, float]:
        """In GiB."""
        named = {"total": self.total, "free": self.free, "peak": self.peak}
        named |= {"graphs": self.graphs, "outside": self.outside}
        return {f"{name}_gib": round(size / GIB, 2) for name, size in named.items()}


@contextmanager
def card_to_itself(device: "torch.device") -> Iterator[int]:
    """While a node loads: what it measures of the card must be its own doing, so other nodes on it
    wait. Yields the bytes that are free.
    """
    import torch

    identity = torch.cuda.get_device_properties(device).uuid
    lock = Path(tempfile.gettempdir()) / f"kvmesh-{os.getuid()}-{identity}.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield torch.cuda.mem_get_info(device)[0]


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"

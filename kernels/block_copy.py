"""Whole-block copies inside one KV pool, and between two of the same layout."""

import time
from collections.abc import Iterable
from statistics import median

import torch

MEASURED_BYTES = 16 << 20  # more than the caches of one core
REPETITIONS = 3


def copy_blocks(pool: torch.Tensor, copies: Iterable[tuple[int, int]]) -> None:
    """Copies pool[source] to pool[destination] for each (source, destination), in order."""
    copy_between(pool, pool, copies)


def copy_between(
    source: torch.Tensor, target: torch.Tensor, copies: Iterable[tuple[int, int]]
) -> None:
    """Copies source[i] to target[j] for each (i, j), in order.

    A block is one contiguous run of a pool [num_blocks, ...], so each copy is one memory move: ten
    times the speed of indexing with all of them at once.
    """
    for i, j in copies:
        target[j].copy_(source[i])


def copy_speed(block_bytes: int) -> float:
    """Bytes a second that `copy_between` moves, of blocks that are in no cache and whose memory is
    mapped. Takes some ten milliseconds.
    """
    count = max(2, MEASURED_BYTES // block_bytes)
    source, target = (torch.ones((count, block_bytes), dtype=torch.uint8) for _ in range(2))
    # Not in order, as a request's blocks lie.
    copies = [*zip(torch.randperm(count).tolist(), torch.randperm(count).tolist(), strict=True)]
    times = []
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        copy_between(source, target, copies)
        times.append(time.perf_counter() - started)
    return count * block_bytes / median(times)

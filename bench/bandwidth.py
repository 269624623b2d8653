"""How fast one thread reads memory: the limit of everything that reads weights or KV once."""

import time

import numpy as np

BYTES = 1 << 29  # far beyond any cache
REPETITIONS = 5


def read_bandwidth() -> float:
    """Bytes a second, the best of several linear reads by one thread.

    The largest of 64-bit numbers: the cheapest reduction that numpy does with vector registers.
    """
    data = np.ones(BYTES // 8, dtype=np.uint64)
    return BYTES / min(_seconds(data) for _ in range(REPETITIONS))


def _seconds(data: "np.ndarray[tuple[int], np.dtype[np.uint64]]") -> float:
    started = time.perf_counter()
    np.maximum.reduce(data)
    return time.perf_counter() - started

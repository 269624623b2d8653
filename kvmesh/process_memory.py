"""What a process does with its memory when all that stays is loaded."""

import ctypes
import gc

RARELY = 10_000, 20, 20
"""New objects until the collector looks at them, and looks until it looks at older ones, twice.
With looks after 700, a lease of the router takes 1.03 times as long.
"""


def collect_rarely() -> None:
    """Of a process whose work leaves few cycles."""
    gc.set_threshold(*RARELY)


def settle() -> None:
    """What is there now is not looked at by the collector again: one pass over the modules of torch
    takes as long as a step. What loading left free goes back to the system (glibc keeps it:
    80 MB in a node of SmolLM2).
    """
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

"""What loading leaves behind goes back to the system, and is not collected again."""

import subprocess
import sys

PROGRAM = """
import gc
from pathlib import Path
from kvmesh.process_memory import settle

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

parts = [bytes(60_000) for _ in range(1000)]  # below what malloc maps on its own
last = bytes(60_000)  # keeps the heap's end in use
full = resident()
del parts
settle()
print(full - resident(), gc.get_freeze_count())
"""


def test_memory_that_is_free_is_given_back():
    command = [sys.executable, "-c", PROGRAM]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    given_back, frozen = map(int, found.stdout.split())
    assert given_back > 30_000_000
    assert frozen > 1000

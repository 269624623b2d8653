"""Runs a file of checks in Triton's interpreter.

Whether a kernel is interpreted is settled when triton is first imported, and other tests may have
imported it by then: each file runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIXTURES = "tests.kernels.triton.fixtures"


def run_interpreted(file: Path) -> None:
    # No conftest: it loads a model's code. What numpy warns of are infinities that are meant.
    # Verbose: a read far outside ends the process, and the last line says where.
    command = [
        *(sys.executable, "-m", "pytest", "-v", "--noconftest", "-p", "no:cacheprovider"),
        *("-p", FIXTURES, "-W", "ignore::RuntimeWarning", "--durations=3", str(file)),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

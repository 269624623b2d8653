"""The Triton kernels in Triton's interpreter, against their torch references, without a GPU.

Whether a kernel is interpreted is settled when triton is first imported, and other tests may have
imported it by then: each file of checks runs in a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
FIXTURES = "tests.kernels.triton.fixtures"
FILES = sorted(path.name for path in HERE.glob("check_*.py"))


@pytest.mark.parametrize("file", FILES)
def test_interpreted(file):
    pytest.importorskip("triton")
    # No conftest: it loads a model's code. What numpy warns of are infinities that are meant.
    # Verbose: a read far outside ends the process, and the last line says where.
    command = [
        *(sys.executable, "-m", "pytest", "-v", "--noconftest", "-p", "no:cacheprovider"),
        *("-p", FIXTURES, "-W", "ignore::RuntimeWarning", "--durations=3", str(HERE / file)),
    ]
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

"""The Triton kernels in Triton's interpreter, against their torch references, without a GPU."""

from pathlib import Path

import pytest

from tests.interpreted import run_interpreted

FILES = sorted(Path(__file__).parent.glob("check_*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_interpreted(file):
    pytest.importorskip("triton")
    run_interpreted(file)

"""`kvmesh bench kernels` on a GPU, as far as it goes without one."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvmesh.cli.main import app
from tests.interpreted import run_interpreted


def test_what_is_measured_in_the_interpreter():
    pytest.importorskip("triton")
    run_interpreted(Path(__file__).with_name("check_gpu_kernels.py"))


def test_a_card_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    result = CliRunner().invoke(app, ["bench", "kernels", "--device", "cuda"])
    assert result.exit_code != 0
    assert "device: cuda was asked for" in result.output

"""Compiling the C++ kernels: once, atomically, and without a compiler not at all."""

import logging
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kernels.attention_plan import AttentionRow
from kernels.cpu import library as library_module
from kernels.cpu.build import BuildError, build_library
from kernels.linear import TorchLinear, make_linear
from kernels.step import plan_step
from kernels.torch_step import TorchStep
from tests.kernels.pools import pool_of


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    """As on a machine without one; the cache is empty too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("KVMESH_CACHE", str(tmp_path / "cache"))
    library_module.load_library.cache_clear()
    yield
    library_module.load_library.cache_clear()


def test_without_a_compiler_torch_computes_and_one_line_says_what_to_install(no_compiler, caplog):
    pool = pool_of(torch.zeros((4, 1, 2, 1, 16, 64)))
    with caplog.at_level(logging.WARNING):
        steps = [plan_step(pool, 3, [AttentionRow(0, 5, [1])], torch.float32) for _ in range(3)]
        linear = make_linear(torch.ones(16, 32, dtype=torch.bfloat16))
    assert all(isinstance(step, TorchStep) for step in steps)
    assert isinstance(linear, TorchLinear)
    assert len(caplog.messages) == 1
    assert "apt-get install g++" in caplog.messages[0]


def test_a_compiler_that_fails_is_named_with_what_it_said(tmp_path, monkeypatch):
    broken = tmp_path / "broken-c++"
    broken.write_text("#!/bin/sh\necho no such flag >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    with pytest.raises(BuildError, match=r"broken-c\+\+ failed:\nno such flag"):
        build_library(cache_dir=tmp_path / "cache")
    assert not [*(tmp_path / "cache").glob("*.so")]


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(BuildError, match="KVMESH_CACHE"):
        build_library(cache_dir=file / "cache")


def test_several_that_start_together_compile_once(tmp_path, monkeypatch):
    calls = tmp_path / "calls"
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit\n'
        f"echo >> {calls}\nsleep 0.2\n"
        'while [ "$1" != -o ]; do shift; done; : > "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with ThreadPoolExecutor(4) as threads:
        paths = {*threads.map(lambda _: build_library(cache_dir=tmp_path / "cache"), range(4))}
    assert len(paths) == 1
    assert calls.read_text() == "\n"


def test_it_can_be_built_ahead_of_time():
    done = subprocess.run(
        [sys.executable, "-m", "kernels.cpu.build"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith(".so")

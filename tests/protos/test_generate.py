"""`protos/generate.py` on copies of the tree: what it accepts, what it refuses, what it writes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """A copy of what the generator reads and writes."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for name in ("protos", "kvmesh/v1"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=unwanted)
    return tmp_path


def generate(tree, *options):
    command = [sys.executable, tree / "protos/generate.py", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_committed_stubs_are_what_the_protos_give(tree):
    result = generate(tree, "--check")
    assert result.returncode == 0, result.stderr


def test_a_stub_edited_by_hand_is_drift(tree):
    edit(tree / "kvmesh/v1/generate_pb2.py", "DESCRIPTOR", "DESCRIPTION")
    result = generate(tree, "--check")
    assert result.returncode != 0
    assert "generate_pb2.py" in result.stderr


def test_a_missing_stub_is_drift(tree):
    (tree / "kvmesh/v1/fleet_pb2.pyi").unlink()
    result = generate(tree, "--check")
    assert result.returncode != 0
    assert "fleet_pb2.pyi" in result.stderr


def test_a_new_field_is_drift_until_it_is_generated(tree):
    proto = tree / "protos/kvmesh/v1/generate.proto"
    edit(proto, "message Usage {", "message Usage {\n  // New.\n  uint32 novelty = 9;")
    assert generate(tree, "--check").returncode != 0
    assert generate(tree).returncode == 0
    assert "novelty" in (tree / "kvmesh/v1/generate_pb2.pyi").read_text()
    assert generate(tree, "--check").returncode == 0


def test_a_breaking_change_is_refused_and_writes_nothing(tree):
    before = (tree / "kvmesh/v1/generate_pb2.pyi").read_text()
    edit(tree / "protos/kvmesh/v1/generate.proto", "completion_tokens = 2", "completion_tokens = 7")
    for options in ([], ["--check"]):
        result = generate(tree, *options)
        assert result.returncode != 0
        assert "kvmesh.v1.Usage.completion_tokens" in result.stderr
    assert (tree / "kvmesh/v1/generate_pb2.pyi").read_text() == before


def test_a_breaking_change_can_be_accepted(tree):
    edit(tree / "protos/kvmesh/v1/generate.proto", "completion_tokens = 2", "completion_tokens = 7")
    assert generate(tree, "--accept-breaking").returncode == 0
    assert generate(tree, "--check").returncode == 0

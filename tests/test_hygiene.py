"""Promises about the repository itself that no other tool keeps."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kvmesh", "prefix_index", "router", "cache_node", "kernels", "bench")
GENERATED = ROOT / "kvmesh/v1"
MOST_LINES = 300


def our_files():
    files = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return [path for path in files if GENERATED not in path.parents]


def test_no_file_grows_beyond_one_noun():
    lengths = {path: len(path.read_text().splitlines()) for path in our_files()}
    assert {str(path): n for path, n in lengths.items() if n > MOST_LINES} == {}


def test_every_module_says_what_it_is_for():
    silent = [str(p) for p in our_files() if not p.read_text().startswith(('"""', "#!"))]
    assert silent == []


def test_nothing_of_one_machine_is_committed():
    """What git ignores was added by mistake; a link may lead where only its author has something,
    and checking it out over a directory that git ignores deletes that.
    """

    def listed(*arguments):
        command = ["git", "ls-files", *arguments]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    assert listed("--cached", "--ignored", "--exclude-standard") == []
    assert [line for line in listed("--stage") if line.startswith("120000")] == []


def test_make_help_lists_every_target():
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    help_text = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    listed = re.findall(r"^  make ([a-z-]+) +\S", help_text, re.MULTILINE)
    assert phony is not None
    assert sorted(listed) == sorted(phony.group(1).split())


WITHOUT_TRITON = """
import importlib, pkgutil, sys
sys.modules["triton"] = None  # makes every import of it fail
import kernels
for module in pkgutil.walk_packages(kernels.__path__, "kernels."):
    if not module.name.startswith("kernels.triton"):
        importlib.import_module(module.name)
"""


def test_kernels_import_without_triton():
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, check=True)


@pytest.fixture(scope="module")
def contract(tmp_path_factory):
    """The protos with their comments."""
    out = tmp_path_factory.mktemp("protos") / "with_comments.binpb"
    sources = [str(path) for path in sorted((ROOT / "protos/kvmesh/v1").glob("*.proto"))]
    well_known = Path(protoc.__file__).parent / "_proto"
    options = [f"-I{ROOT / 'protos'}", f"-I{well_known}", "--include_source_info"]
    assert protoc.main(["protoc", *options, f"--descriptor_set_out={out}", *sources]) == 0
    return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def elements(kind, path, element):
    """Every element of the contract below `element`, with its path in the source info."""
    yield kind, path, element.name
    if kind == "message":
        for i, field in enumerate(element.field):
            yield "field", (*path, 2, i), f"{element.name}.{field.name}"
        for i, nested in enumerate(element.nested_type):
            if not nested.options.map_entry:
                yield from elements("message", (*path, 3, i), nested)
        for i, enum in enumerate(element.enum_type):
            yield from elements("enum", (*path, 4, i), enum)
    elif kind == "enum":
        for i, value in enumerate(element.value):
            if value.number != 0:  # zero is "unspecified" everywhere
                yield "value", (*path, 2, i), value.name
    else:
        for i, method in enumerate(element.method):
            yield "rpc", (*path, 2, i), f"{element.name}.{method.name}"


def undocumented(file):
    info = file.source_code_info.location
    said = {tuple(at.path) for at in info if at.leading_comments or at.trailing_comments}
    kinds = (
        ("message", 4, file.message_type),
        ("enum", 5, file.enum_type),
        ("service", 6, file.service),
    )
    for kind, number, tops in kinds:
        for i, top in enumerate(tops):
            for what, path, name in elements(kind, (number, i), top):
                if path not in said:
                    yield f"{file.name}: {what} {name}"


def test_every_element_of_the_contract_has_a_comment(contract):
    assert [line for file in contract.file for line in undocumented(file)] == []

"""Regenerates the stubs in kvmesh/v1 and the committed descriptor set from protos/.

`python protos/generate.py` writes them. `--check` writes nothing and fails when a committed stub
differs from what the protos give. `--accept-breaking` moves the committed descriptor set on;
without it, it only ever grows.
"""

import argparse
import filecmp
import sys
import sysconfig
import tempfile
from pathlib import Path

from breaking import breaking_changes
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
DESCRIPTORS = PROTOS / "descriptors.binpb"
PACKAGE = Path("kvmesh/v1")


def generate(out: Path) -> None:
    """Writes the stubs under `out`/kvmesh/v1 and the descriptor set as `out`/descriptors.binpb."""
    sources = sorted(str(path) for path in (PROTOS / PACKAGE).glob("*.proto"))
    well_known = Path(protoc.__file__).parent / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={PROTOS}",
        f"--proto_path={well_known}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        *(f"--plugin={_script(name)}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet,generate_concrete_servicer_stubs:{out}",
        f"--descriptor_set_out={out / DESCRIPTORS.name}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        sys.exit("protoc failed")


def _script(name: str) -> str:
    """A plugin of this interpreter's environment, which need not be on the PATH."""
    return f"{name}={Path(sysconfig.get_path('scripts')) / name}"


def drift(out: Path) -> list[str]:
    """Generated files that differ from the committed ones, or are missing on either side."""
    made = {path.name for path in (out / PACKAGE).iterdir()}
    kept = {path.name for path in (ROOT / PACKAGE).glob("*_pb2*")}
    common = sorted(made & kept)
    _, differ, errors = filecmp.cmpfiles(out / PACKAGE, ROOT / PACKAGE, common, shallow=False)
    return sorted(made ^ kept) + differ + errors


def install(out: Path) -> None:
    target = ROOT / PACKAGE
    for old in target.glob("*_pb2*"):
        old.unlink()
    for path in (out / PACKAGE).iterdir():
        (target / path.name).write_bytes(path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, fail on drift")
    parser.add_argument(
        "--accept-breaking", action="store_true", help="overwrite the descriptor set all the same"
    )
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        generate(out)
        new = (out / DESCRIPTORS.name).read_bytes()
        old = DESCRIPTORS.read_bytes() if DESCRIPTORS.exists() else b""
        broken = [] if options.accept_breaking else breaking_changes(old, new)
        if broken:
            sys.exit("breaking changes of the protos:\n  " + "\n  ".join(broken))
        if not options.check:
            install(out)
            DESCRIPTORS.write_bytes(new)
            return
        stale = drift(out) + ([DESCRIPTORS.name] if old != new else [])
        if stale:
            sys.exit("not what the protos give, run `make protos`: " + ", ".join(stale))


if __name__ == "__main__":
    main()

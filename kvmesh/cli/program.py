"""How to call kvmesh again from the shell that has called it now."""

import shutil
import sys
from pathlib import Path


def program() -> str:
    """`kvmesh` where that is found, else the path under which it runs (no environment active)."""
    if shutil.which("kvmesh"):
        return "kvmesh"
    called = Path(sys.argv[0])
    return str(called) if called.name == "kvmesh" else f"{sys.executable} -m kvmesh.cli"

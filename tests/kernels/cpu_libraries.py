"""The C++ kernels compiled for several kinds of CPU, so that fall-backs are tested where this CPU
would not need them.
"""

import platform
import shutil
from functools import cache
from pathlib import Path

import pytest

from kernels.cpu.build import COMPILERS, build_library
from kernels.cpu.library import Library

ARCHITECTURES = ["native"]
if platform.machine() == "x86_64":
    # AVX-512 without the matrix unit, AVX2 with FMA, and SSE2.
    ARCHITECTURES += ["icelake-server", "x86-64-v3", "x86-64"]
NEEDS = {"icelake-server": "avx512_vnni", "x86-64-v3": "avx2"}


@cache
def library(architecture: str) -> Library:
    needed = NEEDS.get(architecture)
    if needed and needed not in Path("/proc/cpuinfo").read_text().split():
        pytest.skip(f"this CPU has no {needed}")
    # Sources that do not compile are a failure, not a reason to skip.
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip(f"none of {', '.join(COMPILERS)} is installed")
    return Library(build_library(architecture))


every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)

"""The C++ kernels compiled for several kinds of CPU, so that fall-backs are tested where this CPU
would not need them.
"""

import platform
from functools import cache
from pathlib import Path

import pytest

from kernels.cpu.build import BuildError, build_library
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
    try:
        return Library(build_library(architecture))
    except BuildError as error:
        pytest.skip(str(error))


every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)

"""Compiles the C++ kernels on first use, into the user's cache.

Not when the package is installed: a wheel would then fit one kind of CPU, or carry several copies,
and an install without a compiler would fail instead of running on torch. It takes seconds, once
for each version of the sources, compiler and kind of CPU. `python -m kernels.cpu.build` does it
ahead of time, in an image for instance.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCES = Path(__file__).parent
COMPILERS = ("g++", "clang++", "c++")
# No -ffast-math: it would drop the infinities of masked scores, and make all the process flush
# subnormal numbers. Selections count as branches where comparisons may trap.
FLAGS = (
    *("-O3", "-std=c++17", "-fPIC", "-shared", "-fopenmp", "-Wno-psabi"),
    *("-fno-math-errno", "-fno-trapping-math"),
    # GCC halves the vectors of AVX-512 by itself, for the first CPUs that slowed down with them.
    *(("-mprefer-vector-width=512",) if platform.machine() == "x86_64" else ()),
)
TIMEOUT = 300.0  # seconds; a busy core takes ten


class BuildError(RuntimeError):
    """There is no library; the message says what to do."""


def build_library(architecture: str = "native", cache_dir: Path | None = None) -> Path:
    """The compiled library for `architecture` (as in `-march`), compiled if it is not there yet.

    Of several processes that start together one compiles, the others wait. Raises BuildError
    without a compiler, when the compiler fails, or when the cache cannot be written.
    """
    compiler = _find_compiler()
    command = [compiler, *FLAGS, f"-march={architecture}"]
    try:
        directory = cache_dir or _cache_directory()
        target = directory / f"kernels-{_key(command)}.so"
        if not target.is_file():
            directory.mkdir(parents=True, exist_ok=True)
            with _lock(directory):
                if not target.is_file():
                    _compile(command, target)
    except OSError as error:
        raise BuildError(f"cannot write the kernel cache: {error}; set KVMESH_CACHE") from error
    return target


def _find_compiler() -> str:
    for name in (os.environ.get("CXX"), *COMPILERS):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("no C++ compiler; install g++ (Debian: apt-get install g++) or set CXX")


def _cache_directory() -> Path:
    root = os.environ.get("KVMESH_CACHE") or Path.home() / ".cache" / "kvmesh"
    return Path(root).expanduser() / "kernels"


def _key(command: list[str]) -> str:
    """Of all that the compiled code depends on."""
    digest = hashlib.blake2b(digest_size=12)
    for part in (*command, _version(command[0]), platform.machine(), _cpu_flags()):
        digest.update(part.encode() + b"\0")
    for path in sorted([*SOURCES.glob("*.cpp"), *SOURCES.glob("*.h")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _version(compiler: str) -> str:
    done = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False, timeout=TIMEOUT
    )
    return done.stdout


def _cpu_flags() -> str:
    """What `-march=native` stands for, where Linux tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^(flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return " ".join(sorted(found.group(2).split())) if found else ""


def _compile(command: list[str], target: Path) -> None:
    """Under another name first, so that nobody loads half a library."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        output = Path(scratch) / target.name
        sources = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
        try:
            done = subprocess.run(
                [*command, "-o", str(output), *sources],
                capture_output=True, text=True, check=False, timeout=TIMEOUT,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildError(f"{command[0]} took longer than {TIMEOUT:g} s") from error
        if done.returncode:
            raise BuildError(f"{command[0]} failed:\n{done.stderr[-2000:]}")
        output.replace(target)


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    with (directory / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    try:
        print(build_library())
    except BuildError as failure:
        sys.exit(str(failure))

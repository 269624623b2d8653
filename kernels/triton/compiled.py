"""What the compiler makes of the kernels, for any chip, on a machine that has none."""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any
from unittest import mock

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

# On CUDA, loads to registers and to shared memory, and the matrix instructions of three
# generations; on gfx942, those in the compiler's assembly.
CUDA_LOADS = r"\b(?:LDG|LDGSTS)\.E[\w.]*"
CUDA_MATRIX = r"\b(?:HMMA|HGMMA|UTC\w*MMA)[\w.]*"
HIP_LOADS = r"\b(?:global|buffer|flat)_load_\w+"
HIP_MATRIX = r"\bv_mfma_\w+"


@dataclass(frozen=True, slots=True)
class Launch:
    kernel: Any  # a triton.JITFunction
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measures:
    registers: int  # of a thread
    spilled: int  # bytes of a thread's registers in memory
    shared: int  # bytes of a program
    wide_loads: int  # instructions that load 128 bits a thread
    loads: int  # all
    matrix: str  # instructions of the tensor cores, and how many


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """What would be launched inside of it, and is not."""
    launches: list[Launch] = []

    def record(kernel: Any, *arguments: Any, **options: Any) -> None:
        del options["grid"], options["warmup"]
        launches.append(Launch(kernel, arguments, options))

    with mock.patch.object(JITFunction, "run", record):
        yield launches


def measure(launch: Launch, target: GPUTarget) -> Measures:
    """Compiles the kernel for `target`, specialised on its arguments as at a launch."""
    kernel, backend = launch.kernel, make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialisation, rest = bind(*launch.arguments, **launch.options)
    options, signature, constants, attributes = kernel._pack_args(
        backend, launch.options, bound, specialisation, rest
    )
    source = ASTSource(kernel, signature, constants, attributes)
    compiled = triton.compile(source, target=target, options=asdict(options))
    read = _read_cubin if target.backend == "cuda" else _read_amdgcn
    return read(compiled)


def _read_cubin(compiled: Any) -> Measures:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        usage = _output(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name)
        code = _output(knobs.nvidia.nvdisasm.path, "-c", file.name)
    loads = re.findall(CUDA_LOADS, code)
    return Measures(
        registers=_number(r"REG:(\d+)", usage),
        spilled=_number(r"LOCAL:(\d+)", usage) + _number(r"STACK:(\d+)", usage),
        shared=compiled.metadata.shared,
        wide_loads=sum(".128" in load for load in loads),
        loads=len(loads),
        matrix=_counted(CUDA_MATRIX, code),
    )


def _read_amdgcn(compiled: Any) -> Measures:
    code = compiled.asm["amdgcn"]
    loads = re.findall(HIP_LOADS, code)
    return Measures(
        registers=_number(r"\.vgpr_count:\s*(\d+)", code),
        spilled=_number(r"\.private_segment_fixed_size:\s*(\d+)", code),
        shared=compiled.metadata.shared,
        wide_loads=sum("dwordx4" in load for load in loads),
        loads=len(loads),
        matrix=_counted(HIP_MATRIX, code),
    )


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found, f"the compiler's tools no longer print {pattern}"
    return int(found[1])


def _counted(pattern: str, code: str) -> str:
    return ", ".join(
        f"{n} {name}" for name, n in sorted(Counter(re.findall(pattern, code)).items())
    )


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout

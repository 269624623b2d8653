"""Compiles what the launchers launch for each chip, and compares registers, spills, shared memory,
128-bit loads and matrix instructions with the reviewed table beside it:

    python -m kernels.triton.static            exit code 1 and the differences, if there are any
    python -m kernels.triton.static --write    takes them into the table

No GPU is needed, only triton. Numbers are those of the pinned release. Triton keeps what it
compiled: the first run takes about six minutes, the next some seconds.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from triton.backends.compiler import GPUTarget

from kernels.attention import AttentionParams
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.triton.block_copy import copy_blocks, gather_blocks, scatter_blocks
from kernels.triton.compiled import measure, recorded
from kernels.triton.decode import decode_attention
from kernels.triton.kv_write import write_kv
from kernels.triton.prefill import prefill_attention

TABLE = Path(__file__).with_suffix(".json")
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
KV_HEADS, HEADS, BLOCK_SIZE = 8, 32, 16
# The compiler for AMD counts with 32 bits in a pool of less, which a real one exceeds. No page of
# it is ever touched.
POOL_BYTES = 3 << 30
PLAIN = AttentionParams(0.1)
WINDOWED = AttentionParams(0.1, window=4096, softcap=50.0)

Table = dict[str, dict[str, dict[str, Any]]]


def main(arguments: list[str]) -> int:
    found = dict(named for case in CASES for named in compile_case(case))
    if arguments == ["--write"]:
        TABLE.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    differences = list_differences(json.loads(TABLE.read_text()), found)
    for line in differences:
        print(line)
    print(f"{len(found)} kernels for {', '.join(TARGETS)}: {len(differences)} differences")
    return 1 if differences else 0


def list_differences(reviewed: Table, found: Table) -> list[str]:
    """A line for each number that is not the reviewed one, or that only one of them has."""
    before, now = _flat(reviewed), _flat(found)
    return [
        f"{where}: {before.get(where)} in the table, {now.get(where)} found"
        for where in dict.fromkeys((*before, *now))
        if before.get(where) != now.get(where)
    ]


def _flat(table: Table) -> dict[str, Any]:
    return {
        f"{name} on {chip}, {what}": number
        for name, chips in table.items()
        for chip, measures in chips.items()
        for what, number in measures.items()
    }


def compile_case(case: str) -> list[tuple[str, dict[str, dict[str, Any]]]]:
    """Name and measures, by chip, of each kernel that a case of CASES launches."""
    with recorded() as launches:
        CASES[case]()
    return [
        (
            f"{case}: {launch.kernel.__name__}",
            {chip: asdict(measure(launch, target)) for chip, target in TARGETS.items()},
        )
        for launch in launches
    ]


def _pool(stored: str, head_dim: int) -> KvPool:
    """`stored` as in SHAPES."""
    kv_dtype, _, centred = stored.partition(" ")
    layout = KvLayout(2, KV_HEADS, head_dim, BLOCK_SIZE, kv_dtype)
    scales = torch.ones((2, 2, KV_HEADS)) if kv_dtype == "fp8" else None
    tails = tail_slots(layout, 64, torch.bfloat16) if kv_dtype == "int4" else None
    centres = torch.zeros((2, 2, KV_HEADS, head_dim)) if centred else None
    return KvPool.zeros(layout, POOL_BYTES // layout.bytes_per_block, scales, tails, centres)


def _tails(pool: KvPool, count: int) -> torch.Tensor | None:
    return None if pool.int4 is None else torch.zeros(count, dtype=torch.int64)


def _query(kv_dtype: str, head_dim: int) -> torch.Tensor:
    dtype = torch.float32 if kv_dtype == "float32" else torch.bfloat16
    return torch.zeros((32, HEADS, head_dim), dtype=dtype)


def _decode(kv_dtype: str, head_dim: int, params: AttentionParams, splits: int) -> None:
    tables = torch.zeros((32, 64), dtype=torch.int32)
    lengths = torch.zeros(32, dtype=torch.int32)
    query, pool = _query(kv_dtype, head_dim), _pool(kv_dtype, head_dim)
    tails = _tails(pool, 32)
    decode_attention(query, pool, 1, tables, lengths, params, splits, tails=tails)


def _prefill(kv_dtype: str, head_dim: int, params: AttentionParams) -> None:
    tables = torch.zeros((4, 64), dtype=torch.int32)
    starts, lengths = torch.zeros(5, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    query, pool = _query(kv_dtype, head_dim), _pool(kv_dtype, head_dim)
    tails = _tails(pool, 32)
    prefill_attention(query, pool, 1, starts, tables, lengths, params, tails=tails)


def _write(kv_dtype: str) -> None:
    kv = torch.zeros((32, 2, KV_HEADS, 128))
    pool, slots = _pool(kv_dtype, 128), torch.zeros((2, 32), dtype=torch.int64)
    write_kv(pool, 1, slots, kv, _tails(pool, 32))


def _move(how: str) -> None:
    raw, blocks = _pool("bfloat16", 128).raw, torch.zeros((2, 16), dtype=torch.int64)
    if how == "copy":
        copy_blocks(raw, blocks)
    elif how == "gather":
        gather_blocks(raw, blocks[0], torch.zeros((16, raw.shape[1]), dtype=torch.uint8))
    else:
        scatter_blocks(torch.zeros((16, raw.shape[1]), dtype=torch.uint8), blocks[0], raw)


SHAPES = [("bfloat16", 64), ("bfloat16", 128), ("bfloat16", 256), ("float32", 128)]
SHAPES += [("float32", 256), ("fp8", 128), ("int8", 80), ("int8", 128), ("int8", 256)]
SHAPES += [("int4", 64), ("int4", 80), ("int4", 128), ("int4", 256)]
SHAPES += [("fp8", 256), ("fp8 centred", 128), ("int8 centred", 256), ("int4 centred", 128)]
WRITES = ("bfloat16", "fp8", "int8", "int4", "fp8 centred", "int4 centred")
CASES: dict[str, Callable[[], None]] = {
    **{f"decode {d} {n}": partial(_decode, d, n, PLAIN, 1) for d, n in SHAPES},
    "decode bfloat16 128, 8 splits": partial(_decode, "bfloat16", 128, PLAIN, 8),
    "decode int4 centred 128, 8 splits": partial(_decode, "int4 centred", 128, PLAIN, 8),
    "decode bfloat16 128, window and cap": partial(_decode, "bfloat16", 128, WINDOWED, 1),
    **{f"prefill {d} {n}": partial(_prefill, d, n, PLAIN) for d, n in SHAPES},
    "prefill bfloat16 128, window and cap": partial(_prefill, "bfloat16", 128, WINDOWED),
    **{f"write {d} 128": partial(_write, d) for d in WRITES},
    **{f"move, {how}": partial(_move, how) for how in ("copy", "gather", "scatter")},
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

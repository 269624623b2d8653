"""The Triton kernels beside the speed at which a card copies memory, and beside what others have.

All of them move memory more than they compute, prefill apart. A fraction is the bytes that a kernel
has to read and write, over its time, over the bytes a second of a copy, which reads and writes each
once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import torch

from bench.figures import Goal
from bench.gpu_rivals import Call, DecodeCase, decode_rivals, torch_attention
from kernels.attention import AttentionParams
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.triton.block_copy import copy_blocks, gather_blocks, scatter_blocks
from kernels.triton.decode import decode_attention
from kernels.triton.kv_write import write_kv
from kernels.triton.prefill import prefill_attention
from kernels.triton.step import decode_splits

COPIED = 1 << 30
FLUSHED = 1 << 30  # written before each run: beyond any cache, and longer than a launch takes
QUANTISED = ("fp8", "int8", "int4")
MOVE_GOAL = 0.85

Timer = Callable[[Call], float]
"""Seconds that a call takes on the device."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """Of Llama 3 8B."""

    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    decodes: Sequence[tuple[int, int]] = ((32, 4096), (8, 4096), (1, 32768))  # batch, context
    decode_goals: Sequence[float] = (0.8, 0.65, 0.5)
    prefills: Sequence[tuple[int, int]] = ((2048, 2048), (512, 8192))  # new tokens, context
    written: int = 8192  # tokens
    moved: int = 256  # blocks

    def layout(self, dtype: str, layers: int = 1) -> KvLayout:
        return KvLayout(layers, self.kv_heads, self.head_dim, self.block_size, dtype)


@dataclass(frozen=True, slots=True)
class GpuFigure:
    """One kernel at one shape."""

    what: str
    seconds: float
    size: int  # bytes that it reads and writes at least
    rivals: Mapping[str, float | str] = field(
        default_factory=dict
    )  # seconds, or why there are none
    goal: float | None = None  # of a copy

    def of_copy(self, bytes_per_second: float) -> float:
        return self.size / self.seconds / bytes_per_second


@dataclass(frozen=True, slots=True)
class GpuKernelFigures:
    copy_bytes_per_second: float
    figures: Sequence[GpuFigure]

    @property
    def goals(self) -> list[Goal]:
        speed = self.copy_bytes_per_second
        return [
            Goal(f"{each.what}, of a copy", each.of_copy(speed), each.goal, at_most=False)
            for each in self.figures
            if each.goal is not None
        ]


class CudaTimer:
    """The median of several runs, each with cold caches."""

    def __init__(self, repetitions: int) -> None:
        self._repetitions = repetitions
        self._flushed = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")

    def __call__(self, run: Call) -> float:
        run()  # compiles
        return median(self._seconds(run) for _ in range(self._repetitions))

    def _seconds(self, run: Call) -> float:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        self._flushed.zero_()
        events[0].record()
        run()
        events[1].record()
        events[1].synchronize()
        milliseconds: float = events[0].elapsed_time(events[1])
        return milliseconds / 1e3


def measure_gpu_kernels(
    device: torch.device, timer: Timer, shapes: Shapes | None = None, copied: int = COPIED
) -> GpuKernelFigures:
    shapes = shapes or Shapes()
    with torch.inference_mode():
        speed = _copy_speed(device, timer, copied)
        figures = [*_decodes(shapes, device, timer), *_prefills(shapes, device, timer)]
        figures += [*_writes(shapes, device, timer), *_moves(shapes, device, timer)]
    return GpuKernelFigures(speed, figures)


def _copy_speed(device: torch.device, timer: Timer, size: int) -> float:
    """Bytes read and written a second."""
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / timer(lambda: target.copy_(source))


def decode_bytes(layout: KvLayout, heads: int, batch: int, context: int) -> int:
    """Keys and values of one layer with their scales, queries and results in bfloat16."""
    vectors = batch * context * layout.bytes_per_token // layout.num_layers
    return vectors + 2 * 2 * batch * heads * layout.head_dim


def _decodes(shapes: Shapes, device: torch.device, timer: Timer) -> Iterator[GpuFigure]:
    for (batch, context), goal in zip(shapes.decodes, shapes.decode_goals, strict=True):
        yield _decode(shapes, device, timer, batch, context, "bfloat16", goal)
    for dtype in QUANTISED:
        yield _decode(shapes, device, timer, *shapes.decodes[0], dtype, None)


def _decode(
    shapes: Shapes,
    device: torch.device,
    timer: Timer,
    batch: int,
    context: int,
    dtype: str,
    goal: float | None,
) -> GpuFigure:
    width = context // shapes.block_size
    pool = _pool(shapes.layout(dtype), batch * width, device, tails=batch)
    tails = None if pool.int4 is None else torch.arange(batch, device=device)
    tables = _shuffled(batch * width, device).view(batch, width)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    query = torch.randn((batch, shapes.heads, shapes.head_dim), device=device).bfloat16()
    params = AttentionParams(shapes.head_dim**-0.5)
    splits = decode_splits(pool, shapes.heads, batch, context, [None])
    seconds = timer(
        lambda: decode_attention(query, pool, 0, tables, lengths, params, splits, tails=tails)
    )
    rivals: dict[str, float | str] = {}
    if dtype == "bfloat16":
        rivals = _timed(decode_rivals(DecodeCase(query, pool, tables, lengths, context)), timer)
    size = decode_bytes(pool.layout, shapes.heads, batch, context)
    named = "" if dtype == "bfloat16" else f", {dtype}"
    return GpuFigure(f"decode {batch} × {context:,}{named}", seconds, size, rivals, goal)


def _prefills(shapes: Shapes, device: torch.device, timer: Timer) -> Iterator[GpuFigure]:
    for tokens, context in shapes.prefills:
        yield _prefill(shapes, device, timer, tokens, context)


def _prefill(
    shapes: Shapes, device: torch.device, timer: Timer, tokens: int, context: int
) -> GpuFigure:
    width = context // shapes.block_size
    pool = _pool(shapes.layout("bfloat16"), width, device)
    tables = _shuffled(width, device).view(1, width)
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    lengths = torch.tensor([context], dtype=torch.int32, device=device)
    query = torch.randn((tokens, shapes.heads, shapes.head_dim), device=device).bfloat16()
    params = AttentionParams(shapes.head_dim**-0.5)
    seconds = timer(lambda: prefill_attention(query, pool, 0, starts, tables, lengths, params))
    rivals = _timed({"torch": torch_attention(query.unsqueeze(0), pool, tables)}, timer)
    size = decode_bytes(pool.layout, shapes.heads, 1, context)
    size += 2 * 2 * (tokens - 1) * shapes.heads * shapes.head_dim
    return GpuFigure(f"prefill {tokens:,} of {context:,}", seconds, size, rivals)


def _writes(shapes: Shapes, device: torch.device, timer: Timer) -> Iterator[GpuFigure]:
    blocks = -(-shapes.written // shapes.block_size)
    order = torch.randperm(blocks * shapes.block_size, device=device)[: shapes.written]
    slots = torch.stack((1 + order // shapes.block_size, order % shapes.block_size))
    kv = torch.randn((shapes.written, 2, shapes.kv_heads, shapes.head_dim), device=device)
    for dtype in ("bfloat16", *QUANTISED):
        pool = _pool(shapes.layout(dtype), blocks, device, tails=blocks)
        size = 4 * kv.numel() + shapes.written * pool.layout.bytes_per_token
        if pool.int4 is None:
            seconds = timer(partial(write_kv, pool, 0, slots, kv))
            rivals = _timed({"torch": partial(pool.write, 0, slots, kv)}, timer)
        else:  # keys go through the tails, in bfloat16
            seconds = timer(partial(write_kv, pool, 0, slots, kv, tails=slots[0] - 1))
            rivals = {}
            size += 2 * 2 * kv.numel() // 2
        yield GpuFigure(f"write {shapes.written:,}, {dtype}", seconds, size, rivals)


def _moves(shapes: Shapes, device: torch.device, timer: Timer) -> Iterator[GpuFigure]:
    layout, count = shapes.layout("bfloat16", shapes.layers), shapes.moved
    raw = torch.zeros((2 * count, layout.bytes_per_block), dtype=torch.uint8, device=device)
    staging = torch.zeros((count, layout.bytes_per_block), dtype=torch.uint8, device=device)
    order = torch.randperm(2 * count, device=device)
    sources, targets = order[:count], order[count:]
    copies = torch.stack((sources, targets))

    def index_copy() -> None:
        raw[targets] = raw[sources]

    def index_scatter() -> None:
        raw[targets] = staging

    runs: dict[str, tuple[Call, Call]] = {
        "copy": (lambda: copy_blocks(raw, copies), index_copy),
        "gather": (
            lambda: gather_blocks(raw, sources, staging),
            lambda: torch.index_select(raw, 0, sources, out=staging),
        ),
        "scatter": (lambda: scatter_blocks(staging, targets, raw), index_scatter),
    }
    for name, (ours, theirs) in runs.items():
        rivals = _timed({"torch": theirs}, timer)
        size = 2 * staging.numel()
        yield GpuFigure(f"{name} {count} blocks", timer(ours), size, rivals, MOVE_GOAL)


def _timed(calls: Mapping[str, Call | str], timer: Timer) -> dict[str, float | str]:
    """Seconds of each. One that fails, as another release of it may, says so instead."""
    found: dict[str, float | str] = {}
    for name, call in calls.items():
        try:
            found[name] = call if isinstance(call, str) else timer(call)
        except Exception as error:  # noqa: BLE001  whatever another's kernel raises
            found[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found


def _pool(layout: KvLayout, blocks: int, device: torch.device, tails: int = 0) -> KvPool:
    """Full of small random numbers, with a null block; for int4, with `tails` open blocks."""
    raw = torch.zeros((1 + blocks, layout.bytes_per_block), dtype=torch.uint8, device=device)
    scales = None
    if layout.dtype == "fp8":
        scales = torch.full((layout.num_layers, 2, layout.num_kv_heads), 0.01, device=device)
    keys = None
    if layout.dtype == "int4":
        keys = tail_slots(layout, tails, torch.bfloat16).to(device)
    pool = KvPool(layout, raw, scales, keys)
    if layout.dtype == "bfloat16":
        pool.elements.normal_()
        return pool
    raw.random_(0, 64)  # of elements; as float16, scales between 0 and 2
    return pool


def _shuffled(blocks: int, device: torch.device) -> torch.Tensor:
    return 1 + torch.randperm(blocks, device=device).int()

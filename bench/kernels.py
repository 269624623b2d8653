"""The CPU's kernels beside plain torch, and both beside the speed of memory.

Everything here reads weights or KV once, so that memory is the limit. Each repetition measures the
kernel, torch and a linear read one after the other, in CPU time of the thread: ratios within a
repetition hold on a machine that does other things, times do not.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.figures import Goal
from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.load_executor import load_executor
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import Row, StepPlan
from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.library import Library, load_library
from kernels.cpu.linear import PackedLinear
from kernels.cpu.step import CpuStep
from kernels.kv_int4 import tail_slots
from kernels.kv_layout import KvLayout
from kernels.kv_pool import KvPool
from kernels.linear import TorchLinear
from kernels.torch_step import TorchStep

# SmolLM2-135M, whose decode attention is what the goals speak of.
LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK_SIZE = 30, 9, 3, 64, 16
LINEARS = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # outputs, inputs of a layer
LM_HEAD = (49152, 576)
DECODES = ((1, 256), (1, 1024), (8, 1024), (32, 256))  # batch, context
GOAL_DECODES = ((8, 1024), (32, 256))
TOKENS = (1, 8, 32, 512)
STEPS = (1, 8, 32)
STEP_CONTEXT = 256

QUANTISED = ("fp8", "int8", "int4")
QUANTISED_SHAPE = (8, 1024)

READ_GOAL, TORCH_GOAL, STEP_GOAL = 0.4, 3.0, 0.7
QUANTISED_GOAL = 1.3  # time over bfloat16's
READ_BYTES = 1 << 27


@dataclass(frozen=True, slots=True)
class Figure:
    """One kernel at one shape. Times are medians, in seconds."""

    what: str
    seconds: float
    of_read: float  # time of a linear read of the same bytes, over the kernel's
    torch_seconds: float | None  # what one would write
    beside_torch: float | None  # torch's time over the kernel's
    beside_fallback: float | None = None  # what runs where there is no compiler


@dataclass(frozen=True, slots=True)
class KernelFigures:
    figures: Sequence[Figure]
    goals: Sequence[Goal]


def measure_kernels(directory: Path, repetitions: int) -> KernelFigures:
    """Sets torch to one thread. `directory` is a model's, for whole steps. Raises RuntimeError
    where the C++ kernels cannot be compiled.
    """
    library = load_library()
    if library is None:
        raise RuntimeError("the C++ kernels are not there: see the log")
    torch.set_num_threads(1)
    with torch.inference_mode():
        decodes = {shape: _decode(library, *shape, repetitions) for shape in DECODES}
        quantised = {dtype: _quantised(library, dtype, repetitions) for dtype in QUANTISED}
        linears = [*_linears(library, repetitions)]
        steps = {batch: _step(directory, batch, repetitions) for batch in STEPS}
    goals = [
        goal
        for shape in GOAL_DECODES
        for goal in (
            Goal(f"{decodes[shape].what}, of a read", decodes[shape].of_read, READ_GOAL, False),
            Goal(
                f"{decodes[shape].what}, beside torch",
                decodes[shape].beside_torch or 0.0,
                TORCH_GOAL,
                False,
            ),
        )
    ]
    for figure, ratio in quantised.values():
        goals.append(Goal(f"{figure.what}, over bfloat16's time", ratio, QUANTISED_GOAL))
    goals.append(Goal("one stream, of a read of the weights", steps[1].of_read, STEP_GOAL, False))
    figures = [*decodes.values(), *(figure for figure, _ in quantised.values()), *linears]
    return KernelFigures([*figures, *steps.values()], goals)


def _decode(library: Library, batch: int, context: int, repetitions: int) -> Figure:
    """One layer's attention, over all layers in turn so that no cache holds the KV."""
    pool, tables = _filled_pool("bfloat16", batch, context)
    rows = [AttentionRow(context - 1, context, table.tolist()) for table in tables]
    query = torch.randn(batch, HEADS, HEAD_DIM).bfloat16()
    params = AttentionParams(HEAD_DIM**-0.5)

    def gather_and_attend() -> None:
        for layer in range(LAYERS):
            for table, heads in zip(tables, query, strict=True):
                kv = pool.elements[table, layer].permute(1, 2, 0, 3, 4)
                keys, values = kv.flatten(2, 3).unsqueeze(1)
                scaled_dot_product_attention(
                    heads[None, :, None], keys, values, scale=params.scale, enable_gqa=True
                )

    return _compare(
        f"decode attention {batch} × {context}",
        [
            _attending(CpuStep(library, pool, HEADS, rows), query),
            gather_and_attend,
            _attending(TorchStep(pool, HEADS, rows, torch.bfloat16, [None]), query),
        ],
        LAYERS,
        _kv_bytes(pool, batch, context),
        repetitions,
    )


def _quantised(library: Library, dtype: str, repetitions: int) -> tuple[Figure, float]:
    """Decode attention over quantised keys and values, and its time over that of bfloat16."""
    batch, context = QUANTISED_SHAPE
    query = torch.randn(batch, HEADS, HEAD_DIM).bfloat16()
    runs, sizes = [], []
    for each in (dtype, "bfloat16"):
        pool, tables = _filled_pool(each, batch, context)
        rows = [AttentionRow(context - 1, context, table.tolist()) for table in tables]
        runs.append(_attending(CpuStep(library, pool, HEADS, rows), query))
        sizes.append(_kv_bytes(pool, batch, context))
    what = f"decode attention {batch} × {context}, {dtype}"
    figure = _compare(what, runs, LAYERS, sizes[0], repetitions)
    assert figure.beside_torch is not None
    alone = replace(figure, torch_seconds=None, beside_torch=None)
    return alone, 1 / figure.beside_torch


def _filled_pool(dtype: str, batch: int, context: int) -> tuple[KvPool, torch.Tensor]:
    """Random numbers, and block tables [batch, blocks] in no order."""
    width = context // BLOCK_SIZE
    layout = KvLayout(LAYERS, KV_HEADS, HEAD_DIM, BLOCK_SIZE, dtype)
    scales = torch.full((LAYERS, 2, KV_HEADS), 0.01) if dtype == "fp8" else None
    tails = tail_slots(layout, 1, torch.bfloat16) if dtype == "int4" else None
    pool = KvPool.zeros(layout, batch * width + 1, scales, tails)
    rows = [AttentionRow(0, BLOCK_SIZE, [block]) for block in range(batch * width + 1)]
    for layer in range(LAYERS):
        pool.write_rows(layer, rows, torch.randn(len(rows) * BLOCK_SIZE, 2, KV_HEADS, HEAD_DIM))
    return pool, (torch.randperm(batch * width) + 1).view(batch, width)


def _kv_bytes(pool: KvPool, batch: int, context: int) -> int:
    """What one layer reads."""
    return batch * context * pool.layout.bytes_per_token // LAYERS


def _attending(step: CpuStep | TorchStep, query: torch.Tensor) -> Callable[[], None]:
    def run() -> None:
        for layer in range(LAYERS):
            step.attend(layer, query, AttentionParams(HEAD_DIM**-0.5))

    return run


def _linears(library: Library, repetitions: int) -> Iterator[Figure]:
    """A model's linears in turn, its head among them."""
    weights = [torch.randn(shape).bfloat16() for shape in (*LINEARS * LAYERS, LM_HEAD)]
    size = sum(weight.numel() for weight in weights) * 2
    packed = [PackedLinear(library, weight, None, gated=False) for weight in weights]
    plain = [TorchLinear(weight) for weight in weights]
    for tokens in TOKENS:
        used = slice(None, -1 if tokens > max(STEPS) else None)  # a prompt needs one row of logits
        inputs = {n: torch.randn(tokens, n).bfloat16() for n in {w.shape[1] for w in weights}}
        xs = [inputs[weight.shape[1]] for weight in weights]

        def run(
            layers: Sequence[PackedLinear | TorchLinear],
            xs: Sequence[torch.Tensor] = xs,
            used: slice = used,
        ) -> None:
            for layer, x in zip(layers[used], xs[used], strict=True):
                layer.wide(x)

        yield _compare(
            f"linears, {tokens} tokens",
            [lambda: run(packed), lambda: run(plain)],
            1,
            size,
            repetitions,
        )


def _step(directory: Path, batch: int, repetitions: int) -> Figure:
    """A whole decode step, sampling among it, of the model in `directory`."""
    width = STEP_CONTEXT // BLOCK_SIZE
    config = NodeConfig(device="cpu", block_size=BLOCK_SIZE, num_blocks=batch * width + 1)
    executor = load_executor(config, directory, lambda _stage, _fraction: None)
    spec = SampleSpec(SamplingParams(temperature=0.0), position=STEP_CONTEXT)
    tables = (torch.randperm(batch * width) + 1).view(batch, width).tolist()
    plan = StepPlan([Row([5], STEP_CONTEXT - 1, table, [spec]) for table in tables])
    kv_size = executor.layout.bytes_per_block * batch * width
    size = _weight_bytes(executor) + kv_size
    return _compare(
        f"decode step {batch} × {STEP_CONTEXT}", [lambda: executor.run(plan)], 1, size, repetitions
    )


def _weight_bytes(executor: ModelExecutor) -> int:
    """Of what every token reads: all linears, the head among them."""
    config = executor.model_config
    heads = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    layer = config.hidden_size * (heads + 3 * config.intermediate_size)
    return 2 * (config.num_layers * layer + config.vocab_size * config.hidden_size)


def _compare(
    what: str, runs: Sequence[Callable[[], object]], parts: int, size: int, repetitions: int
) -> Figure:
    """`runs` are the kernel, then, if there are any, its rival and the fallback; `size` bytes are
    what one of `parts` reads.
    """
    data = np.ones(READ_BYTES // 8, np.uint64)
    times: list[list[float]] = []
    for run in runs:
        run()
    for _ in range(repetitions):
        read = _seconds(lambda: np.maximum.reduce(data)) * size / READ_BYTES
        times.append([read, *(_seconds(run) / parts for run in runs)])
    of_read, _, *beside = (median(row[i] / row[1] for row in times) for i in range(len(runs) + 1))
    rival = median(row[2] for row in times) if beside else None
    rival_ratio, fallback_ratio, *_ = [*beside, None, None]
    kernel = median(row[1] for row in times)
    return Figure(what, kernel, of_read, rival, rival_ratio, fallback_ratio)


def _seconds(run: Callable[[], object]) -> float:
    started = time.thread_time()
    run()
    return time.thread_time() - started

"""What paging costs on the real model: a decode step by block size, and a preempted request's way
back by swap or by computing it again.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.figures import Goal
from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.load_executor import load_executor
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import BlockCopy, Row, StepPlan

BLOCK_SIZES = (8, 16, 32, 64, 128)
BATCH, CONTEXT, STEPS = 8, 512, 8
LENGTHS = (128, 256, 512, 1024)  # tokens of a preempted request
SWAP_BLOCK_SIZE = 16
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class WayBack:
    """Seconds until a preempted request of so many tokens can go on."""

    tokens: int
    swapped: float  # down and up again
    computed: float


@dataclass(frozen=True, slots=True)
class Paging:
    decode: dict[int, float]  # seconds of CPU time of a step, by block size
    ways_back: Sequence[WayBack]

    @property
    def goals(self) -> list[Goal]:
        dearest = max(each.swapped / each.computed for each in self.ways_back)
        return [Goal("swap over recomputing, at the worst length", dearest, 1.0)]


def measure_paging(directory: Path, repetitions: int, dtype: str = "auto") -> Paging:
    """With the model in `directory`, on one compute thread."""
    executors = {size: _load(directory, size, dtype) for size in BLOCK_SIZES}
    decode = _decode_seconds(executors, repetitions)
    ways = [_way_back(executors[SWAP_BLOCK_SIZE], tokens, repetitions) for tokens in LENGTHS]
    return Paging({size: median(each) for size, each in decode.items()}, ways)


def _load(directory: Path, block_size: int, dtype: str) -> ModelExecutor:
    config = NodeConfig(
        dtype=dtype,
        block_size=block_size,
        num_blocks=BATCH * CONTEXT // block_size + 1,
        max_num_batched_tokens=BATCH * CONTEXT,
        max_model_len=CONTEXT * 2,
        swap_space=0.1 if block_size == SWAP_BLOCK_SIZE else 0.0,
    )
    return load_executor(config, directory, lambda _stage, _fraction: None)


def _decode_seconds(
    executors: dict[int, ModelExecutor], repetitions: int
) -> dict[int, list[float]]:
    """All block sizes in turns."""
    plans = {size: _decode_plan(size) for size in executors}
    for size, executor in executors.items():
        for row in plans[size].rows:
            executor.run(StepPlan([Row([5] * (CONTEXT - 1), 0, row.block_table)]))
        executor.run(plans[size])
    seconds: dict[int, list[float]] = {size: [] for size in executors}
    for _ in range(repetitions):
        for size, executor in executors.items():
            started = time.thread_time()
            for _ in range(STEPS):
                executor.run(plans[size])
            seconds[size].append((time.thread_time() - started) / STEPS)
    return seconds


def _decode_plan(block_size: int) -> StepPlan:
    """One token for each of BATCH sequences, whose blocks lie among each other."""
    width = CONTEXT // block_size
    spec = SampleSpec(GREEDY, position=CONTEXT)
    tables = [[1 + BATCH * place + row for place in range(width)] for row in range(BATCH)]
    return StepPlan([Row([9], CONTEXT - 1, table, [spec]) for table in tables])


def _way_back(executor: ModelExecutor, tokens: int, repetitions: int) -> WayBack:
    blocks = list(range(1, tokens // SWAP_BLOCK_SIZE + 1))
    row = Row([5 + i % 90 for i in range(tokens)], 0, blocks)
    copies = [BlockCopy(block, block) for block in blocks]
    _swap(executor, copies)  # pages of the CPU pool
    computed = [_seconds(lambda: executor.run(StepPlan([row]))) for _ in range(repetitions)]
    swapped = [_seconds(lambda: _swap(executor, copies)) for _ in range(repetitions)]
    return WayBack(tokens, median(swapped), median(computed))


def _swap(executor: ModelExecutor, copies: Sequence[BlockCopy]) -> None:
    loaded = threading.Event()
    executor.run(StepPlan([], offloads=copies))
    executor.swap.load(1, copies, lambda _number, _whole: loaded.set())
    loaded.wait()


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started

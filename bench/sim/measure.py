"""Steps of a real engine with the default model, timed: what step times are fitted to."""

import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from bench.in_process import InProcessEngine
from bench.requests import random_prompt
from bench.sim.step_model import Shape, shape_of
from cache_node.config import NodeConfig
from cache_node.step_plan import Executor, RowResult, StepPlan
from kvmesh.tokenizer import Tokenizer

OUTPUT = 16  # tokens of each request
BATCHES = (  # requests at once, tokens of each prompt
    (1, 16),
    (1, 100),
    (1, 500),
    (1, 2000),
    (2, 1000),
    (4, 50),
    (4, 700),
    (8, 20),
    (8, 300),
    (16, 100),
)


class Sample(NamedTuple):
    shape: Shape
    seconds: float


@dataclass(slots=True)
class TimedSteps:
    """Runs plans on another executor. A step is the CPU time of the engine's thread since the end
    of the one before: with one compute thread that is all of it, what the engine does around the
    model too, and nothing of what else runs on the machine.
    """

    executor: Executor
    samples: list[Sample] = field(default_factory=list)
    _ended: float | None = None

    def run(self, plan: StepPlan) -> Sequence[RowResult]:
        began = time.thread_time() if self._ended is None else self._ended
        results = self.executor.run(plan)
        self._ended = time.thread_time()
        self.samples.append(Sample(shape_of(plan.rows), self._ended - began))
        return results


def measure_steps(directory: Path, nodes: int, rounds: int) -> list[Sample]:
    """Of so many engines at once, each in a process of its own, as nodes on one machine are."""
    with ProcessPoolExecutor(nodes, mp_context=get_context("spawn")) as processes:
        measured = processes.map(_measure, *zip(*_tasks(directory, nodes, rounds), strict=True))
        return [sample for samples in measured for sample in samples]


def _tasks(directory: Path, nodes: int, rounds: int) -> list[tuple[Path, int, int]]:
    return [(directory, rounds, seed) for seed in range(nodes)]


def _measure(directory: Path, rounds: int, seed: int) -> list[Sample]:
    """In the engine's own process. Batches in another order for each, so that they mix."""
    from cache_node.load_executor import load_executor
    from cache_node.scheduling import make_scheduler

    config = NodeConfig(kv_cache_bytes=1 << 29)
    executor = load_executor(config, directory, lambda _stage, _fraction: None)
    timed, draw = TimedSteps(executor), random.Random(seed)
    engine = InProcessEngine(
        make_scheduler(config, executor), timed, Tokenizer.from_directory(directory)
    )
    with engine.running():
        engine.complete([random_prompt(draw, 300)], OUTPUT)  # caches, pages of the pool
        timed.samples.clear()
        for _ in range(rounds):
            for requests, length in draw.sample(BATCHES, k=len(BATCHES)):
                prompts = [random_prompt(draw, length) for _ in range(requests)]
                engine.complete(prompts, OUTPUT)
    return timed.samples

"""What the engine does around the model in a step: scheduling, booking, text, news.

The executor is wrapped, and the time between two of its calls is the engine's own. Nothing in the
engine knows that it is measured.
"""

import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.figures import Goal
from bench.in_process import InProcessEngine
from bench.requests import random_prompt
from bench.trivial_executor import TrivialExecutor
from cache_node.commitment import Adaptive
from cache_node.config import NodeConfig
from cache_node.limits import Limits
from cache_node.load_executor import load_executor
from cache_node.memory import KvMemory
from cache_node.preemption import PreemptionCosts, PreemptionMode
from cache_node.scheduler import Scheduler
from cache_node.scheduling import make_scheduler
from cache_node.step_plan import Executor, RowResult, StepPlan
from kvmesh.tokenizer import Tokenizer

BATCH, PROMPT, OUTPUT = 32, 256, 64
BLOCK_SIZE = 16
SHARE_GOAL = 0.05  # of a step outside the model, at most
GROWTH_GOAL = 1.5  # times as long; what grew with the requests would be 100 times as long
SMALL, LARGE = (1_000, 2_500), (100_000, 200_000)  # finished requests, blocks
SHORT = 20  # tokens of prompt of those that finish before: a block and a bit


@dataclass(slots=True)
class TimedExecutor:
    """Runs plans on another executor, and notes when the steps of a full decode batch began and
    ended.
    """

    executor: Executor
    batch: int
    gaps: list[float] = field(default_factory=list)  # seconds before a step, since the last one
    runs: list[float] = field(default_factory=list)  # seconds in the executor
    _ended: float | None = None

    def run(self, plan: StepPlan) -> Sequence[RowResult]:
        started = time.perf_counter()
        results = self.executor.run(plan)
        ended = time.perf_counter()
        full = len(plan.rows) == plan.num_tokens == self.batch
        if full and self._ended is not None:
            self.gaps.append(started - self._ended)
            self.runs.append(ended - started)
        self._ended = ended if full else None
        return results

    def forget(self) -> None:
        self.gaps.clear()
        self.runs.clear()


@dataclass(frozen=True, slots=True)
class Around:
    """Median seconds of a decode step of 32: around the model and in it."""

    what: str
    around: float
    model: float

    @property
    def share(self) -> float:
        return self.around / (self.around + self.model)


@dataclass(frozen=True, slots=True)
class StepCost:
    """With the real model; and without one, after few and many requests, over small and large
    pools.
    """

    shares: list[Around]
    growth: list[Around]

    @property
    def goals(self) -> list[Goal]:
        least = self.growth[0].around
        return [
            *(Goal(f"share around the model, {a.what}", a.share, SHARE_GOAL) for a in self.shares),
            *(
                Goal(f"times as long after {a.what}", a.around / least, GROWTH_GOAL)
                for a in self.growth[1:]
            ),
        ]


def measure_step(directory: Path, repetitions: int) -> StepCost:
    """With the model in `directory`, one compute thread."""
    tokenizer = Tokenizer.from_directory(directory)
    return StepCost(_shares(directory, tokenizer, repetitions), _growth(tokenizer, repetitions))


def _shares(directory: Path, tokenizer: Tokenizer, repetitions: int) -> list[Around]:
    """32 that run, alone and with as many waiting behind them."""
    config = NodeConfig(kv_cache_bytes=1 << 29, max_num_seqs=BATCH, block_size=BLOCK_SIZE)
    executor = load_executor(config, directory, lambda _stage, _fraction: None)
    with _Bench(make_scheduler(config, executor), executor, tokenizer) as bench:
        bench.decode(BATCH)  # pages of the pool, caches
        bench.decode(BATCH, repetitions)
        alone = bench.take("nobody waits")
        bench.decode(2 * BATCH, repetitions)
        return [alone, bench.take(f"{BATCH} wait")]


def _growth(tokenizer: Tokenizer, repetitions: int) -> list[Around]:
    """Interleaved, so that a change of the machine's pace hits all alike."""
    settings = [SMALL, (LARGE[0], SMALL[1]), LARGE]
    with ExitStack() as stack:
        benches = [
            stack.enter_context(_Bench(_scheduler(blocks), TrivialExecutor(), tokenizer))
            for _, blocks in settings
        ]
        for bench, (finished, _) in zip(benches, settings, strict=True):
            bench.finish(finished)
        for _ in range(2 * repetitions):
            for bench in benches:
                bench.decode(BATCH)
        return [
            bench.take(f"{finished} requests, pool of {blocks} blocks")
            for bench, (finished, blocks) in zip(benches, settings, strict=True)
        ]


class _Bench:
    """An engine whose executor is timed, for as long as the context is open."""

    def __init__(self, scheduler: Scheduler, executor: Executor, tokenizer: Tokenizer) -> None:
        self._timed = TimedExecutor(executor, BATCH)
        self._engine = InProcessEngine(scheduler, self._timed, tokenizer)
        self._draw = random.Random(0)
        self._stack = ExitStack()

    def __enter__(self) -> "_Bench":
        self._stack.enter_context(self._engine.running())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def decode(self, requests: int, repetitions: int = 1) -> None:
        for _ in range(repetitions):
            self._complete(requests, PROMPT, OUTPUT)

    def finish(self, requests: int) -> None:
        """Leaves so many behind, each with a block in the prefix cache."""
        for _ in range(requests // BATCH):
            self._complete(BATCH, SHORT, 1)
        self._timed.forget()

    def take(self, what: str) -> Around:
        """What was timed since the last time."""
        timed = self._timed
        found = Around(what, median(timed.gaps), median(timed.runs))
        timed.forget()
        return found

    def _complete(self, requests: int, prompt: int, output: int) -> None:
        prompts = [random_prompt(self._draw, prompt) for _ in range(requests)]
        self._engine.complete(prompts, output)


def _scheduler(blocks: int) -> Scheduler:
    limits = Limits(max_num_seqs=BATCH, max_num_batched_tokens=512)
    costs = PreemptionCosts(PreemptionMode.RECOMPUTE, bytes_per_block=1)
    return Scheduler(KvMemory(blocks, BLOCK_SIZE), limits, Adaptive(), costs)

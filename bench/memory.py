"""KV memory that is allocated and holds no token, on the real scheduler and memory.

A virtual clock and an executor without a model: what is measured does not depend on the machine.
Contiguous preallocation is the same scheduler with one block a request, of the longest length that
a request may have.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

from bench.mix import Shape, draw_mix
from bench.requests import greedy_request, random_prompt
from bench.trivial_executor import TrivialExecutor
from cache_node.commitment import Adaptive
from cache_node.limits import Limits
from cache_node.memory import KvMemory
from cache_node.preemption import PreemptionCosts, PreemptionMode
from cache_node.scheduler import Scheduler
from cache_node.sequence import Sequence
from cache_node.step import Step

BLOCK_SIZES = (8, 16, 32, 64, 128)
MAX_MODEL_LEN = 2048  # tokens
POOL_TOKENS = 16 * MAX_MODEL_LEN
MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS = 256, 512
GOAL, GOAL_BLOCK_SIZE = 0.04, 16  # share of what is allocated, at most

# Virtual time of a step: what it costs to read the weights, and a token's share.
STEP_SECONDS, TOKEN_SECONDS = 10e-3, 0.3e-3


@dataclass(frozen=True, slots=True)
class Waste:
    """Averages over virtual time, from the first step to the last."""

    block_size: int
    wasted: float  # share of the allocated slots without a token
    unfilled: float  # the part of it that a running prefill is still going to fill
    running: float  # requests, while others wait
    preemptions: int

    @property
    def contiguous(self) -> bool:
        return self.block_size == MAX_MODEL_LEN


def measure_waste(
    requests: int, seed: int = 0, block_sizes: Iterable[int] = BLOCK_SIZES
) -> list[Waste]:
    """The same requests at each block size, and last with contiguous preallocation."""
    mix = draw_mix(requests, MAX_MODEL_LEN, seed)
    return [_Run(mix, size, seed).waste() for size in (*block_sizes, MAX_MODEL_LEN)]


class _Run:
    """All requests at once at the door of a node with memory for some of them."""

    def __init__(self, mix: Iterable[Shape], block_size: int, seed: int) -> None:
        self._memory = KvMemory(POOL_TOKENS // block_size, block_size)
        limits = Limits(max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS)
        costs = PreemptionCosts(PreemptionMode.RECOMPUTE, bytes_per_block=1)
        self._scheduler = Scheduler(self._memory, limits, Adaptive(), costs)
        draw, names = random.Random(seed), count()
        for shape in mix:
            prompt = random_prompt(draw, shape.prompt)
            name = f"r{next(names)}"
            self._scheduler.submit(greedy_request(name, prompt, shape.output, block_size, 0.0))
        self._now = 0.0
        self._allocated = self._empty = self._prefilling = 0.0  # slot seconds
        self._crowd = self._crowded = 0.0  # request seconds, and seconds, while others wait

    def waste(self) -> Waste:
        executor = TrivialExecutor()
        while self._scheduler.has_work:
            step = self._scheduler.schedule(self._now)
            results = executor.run(step.plan)
            self._pass_time(step)
            for sampled in self._scheduler.commit(step, results, self._now):
                if sampled.finish_reason is not None:
                    self._scheduler.finish(sampled.sequence, sampled.finish_reason, self._now)
        return Waste(
            self._memory.pool.block_size,
            self._empty / self._allocated,
            self._prefilling / self._allocated,
            self._crowd / self._crowded if self._crowded else 0.0,
            self._scheduler.counters.preemptions,
        )

    def _pass_time(self, step: Step) -> None:
        """While the step runs, its blocks hold what the steps before have written."""
        seconds = STEP_SECONDS + TOKEN_SECONDS * step.plan.num_tokens
        running, size = self._scheduler.roster.running, self._memory.pool.block_size
        allocated = self._memory.pool.num_held * size
        self._now += seconds
        self._allocated += seconds * allocated
        self._empty += seconds * (allocated - held_tokens(running, size))
        self._prefilling += seconds * sum(seq.uncomputed for seq in running)
        if self._scheduler.roster.waiting:
            self._crowd += seconds * len(running)
            self._crowded += seconds


def held_tokens(sequences: Iterable[Sequence], block_size: int) -> int:
    """Slots with a token in them. A block that several sequences share counts once."""
    filled: dict[int, int] = {}
    for sequence in sequences:
        left = sequence.num_computed
        for block in sequence.block_table:
            if left <= 0:
                break
            filled[block] = max(filled.get(block, 0), min(left, block_size))
            left -= block_size
    return sum(filled.values())

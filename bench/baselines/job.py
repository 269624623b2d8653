"""What every way is given, and what it gives back."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import Row, StepPlan

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class Job(NamedTuple):
    """A request; its answer has exactly `output` tokens."""

    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The same model, kernels and KV memory for all. `config.max_model_len` bounds every job."""

    config: NodeConfig
    executor: ModelExecutor
    clock: Callable[[], float] = time.perf_counter

    @property
    def blocks(self) -> int:
        """Of the pool that may be used, from 1 on: block 0 is the null block."""
        return self.executor.num_blocks - 1

    @property
    def width(self) -> int:
        """Blocks of a job of the largest length."""
        assert self.config.max_model_len is not None
        return -(-self.config.max_model_len // self.config.block_size)


@dataclass(slots=True)
class Served:
    """All jobs come at once at time 0. Times in seconds."""

    answers: list[list[int]]
    first: list[float]  # token, by job
    seconds: float = 0.0
    computed: int = 0  # tokens that went through the model
    most: int = 0  # jobs in one step
    _started: float = field(default=0.0, repr=False)

    @classmethod
    def begin(cls, machine: Machine, jobs: Sequence[Job]) -> "Served":
        count = len(jobs)
        return cls([[] for _ in range(count)], [0.0] * count, _started=machine.clock())

    def token(self, job: int, token: int, now: float) -> None:
        self.seconds = now - self._started
        if not self.answers[job]:
            self.first[job] = self.seconds
        self.answers[job].append(token)

    def step(self, plan: StepPlan) -> None:
        self.computed += plan.num_tokens
        self.most = max(self.most, len(plan.rows))

    @property
    def output_rate(self) -> float:
        """Tokens a second."""
        return sum(map(len, self.answers)) / self.seconds


class Baseline(Protocol):
    """A way to serve. The pool is its own while it runs; what it finds there is rubbish."""

    def __call__(self, machine: Machine, jobs: Sequence[Job]) -> Served: ...


def row(tokens: Sequence[int], start: int, table: Sequence[int]) -> Row:
    """A row after which the next token is chosen greedily."""
    return Row(tokens, start, table, [SampleSpec(GREEDY, position=start + len(tokens))])

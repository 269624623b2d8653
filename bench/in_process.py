"""The engine in this process: no network, no router, nothing beside its own thread."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from bench.requests import greedy_request
from bench.timing import Timing
from cache_node.engine import Engine
from cache_node.output_text import OutputText
from cache_node.scheduler import Scheduler
from cache_node.step_output import StepOutput
from cache_node.step_plan import Executor
from kvmesh.tokenizer import Tokenizer


@dataclass(slots=True)
class _Wait:
    """Requests that somebody waits for, by name."""

    started: float
    open: set[str]
    tokens: dict[str, list[float]] = field(default_factory=dict)  # when each came
    cached: dict[str, int] = field(default_factory=dict)
    done: threading.Event = field(default_factory=threading.Event)


class InProcessEngine:
    """A live engine over any executor. One caller at a time."""

    def __init__(self, scheduler: Scheduler, executor: Executor, tokenizer: Tokenizer) -> None:
        self.scheduler = scheduler
        self._tokenizer = tokenizer
        self._block_size = scheduler.memory.pool.block_size
        self._names = count()
        self._wait = _Wait(0.0, set())
        self._engine = Engine(scheduler, executor, time.perf_counter, self._deliver, self._on_death)

    @contextmanager
    def running(self) -> Iterator["InProcessEngine"]:
        self._engine.start()
        try:
            yield self
        finally:
            self._engine.stop()

    def complete(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Timing]:
        """Runs all prompts at once, each to exactly `max_tokens` tokens of output."""
        names = [f"r{next(self._names)}" for _ in prompts]
        self._wait = wait = _Wait(time.perf_counter(), set(names))
        for name, prompt in zip(names, prompts, strict=True):
            request = greedy_request(name, prompt, max_tokens, self._block_size, wait.started)
            self._engine.submit(request, self._make_text, "", 0)
        wait.done.wait()
        if wait.open:
            raise RuntimeError(f"the engine died; {len(wait.open)} requests were open")
        return [
            Timing(wait.started, times[0], times[-1], len(times), wait.cached[name])
            for name in names
            for times in [wait.tokens[name]]
        ]

    def _on_death(self) -> None:
        self._wait.done.set()

    def _make_text(self, _sample: int) -> OutputText:
        return OutputText(self._tokenizer, (), True)

    def _deliver(self, output: StepOutput) -> None:
        """On the engine's thread."""
        now, wait = time.perf_counter(), self._wait
        for delta in output.deltas:
            wait.tokens.setdefault(delta.request_id, []).extend([now] * len(delta.tokens))
        for ended in output.ended:
            wait.open.discard(ended.request.id)
            wait.cached[ended.request.id] = ended.request.cached_tokens
            if not wait.open:
                wait.done.set()

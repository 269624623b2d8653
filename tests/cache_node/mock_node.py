"""A node without torch: the real memory and scheduler, and a model that reads tokens back through
the block table.

The mock model's "KV" is the token itself, kept per block and slot. The next token is a hash of
everything that the table shows, so that one wrong, stale or unwritten block changes the output.
"""

import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

from cache_node.commitment import Adaptive, Commitment
from cache_node.key_chain import KeyChain
from cache_node.limits import Limits
from cache_node.memory import KvMemory
from cache_node.preemption import PreemptionCosts, PreemptionMode
from cache_node.sampling import Choice, SampleSpec, SamplingParams, TokenLogprobs
from cache_node.scheduler import Scheduler
from cache_node.sequence import FinishReason, Progress, Request, Sequence
from cache_node.step_plan import BlockCopy, BlockId, Row, RowResult, StepPlan

VOCAB = 50_000
EOS = 1
ROOT = b"r" * 16


def tokens(count: int, seed: int = 0) -> list[int]:
    """A prompt that is the same for the same arguments."""
    return random.Random(seed).choices(range(2, 1000), k=count)


def next_token(seen: Seq[int | None], sample: int = 0) -> int:
    digest = blake2b(repr((list(seen), sample)).encode(), digest_size=8).digest()
    return 2 + int.from_bytes(digest, "little") % (VOCAB - 2)


def reference(prompt: Seq[int], max_tokens: int, sample: int = 0) -> list[int]:
    """What the mock model answers when it has the node for itself."""
    seen = list(prompt)
    for _ in range(max_tokens):
        seen.append(next_token(seen, sample))
    return seen[len(prompt) :]


class MockExecutor:
    """Runs a plan as an executor does; an unwritten slot reads as None and spoils the output."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._kv: dict[BlockId, dict[int, int]] = {}
        self._cpu: dict[BlockId, dict[int, int]] = {}
        self.plans: list[StepPlan] = []
        self.hold_loads = False  # keep loads open until `finish_loads`
        self._open: list[tuple[int, Seq[BlockCopy], Callable[[int, bool], None]]] = []

    def run(self, plan: StepPlan) -> list[RowResult]:
        self.plans.append(plan)
        for copy in plan.offloads:
            self._cpu[copy.destination] = dict(self._kv.get(copy.source, {}))
        destinations = [copy.destination for copy in plan.copies]
        assert not set(destinations) & {copy.source for copy in plan.copies}
        assert len(set(destinations)) == len(destinations)
        for copy in plan.copies:
            self._kv[copy.destination] = dict(self._kv.get(copy.source, {}))
        for row in plan.rows:
            for place, token in enumerate(row.token_ids, row.start):
                block, slot = self._slot(row, place)
                self._kv.setdefault(block, {})[slot] = token
        return [self._result(row) for row in plan.rows]

    def load(self, number: int, copies: Seq[BlockCopy], done: Callable[[int, bool], None]) -> None:
        self._open.append((number, copies, done))
        if not self.hold_loads:
            self.finish_loads()

    def finish_loads(self, whole: bool = True) -> None:
        """Completes what is being loaded; half of it, when not `whole`."""
        loads, self._open = self._open, []
        for number, copies, done in loads:
            for copy in copies[: None if whole else len(copies) // 2]:
                self._kv[copy.destination] = dict(self._cpu.get(copy.source, {}))
            done(number, whole)

    def _result(self, row: Row) -> RowResult:
        seen = [self._read(row, place) for place in range(row.end)]
        choices = [self._choose(seen, spec) for spec in row.samples]
        logprobs = [TokenLogprobs(-float(target), 1) for target in row.targets]
        return RowResult(choices, logprobs)

    def _choose(self, seen: list[int | None], spec: SampleSpec) -> Choice:
        assert spec.position == len(seen)
        token = next_token(seen, 0 if spec.params.greedy else spec.sample_index)
        logprobs = TokenLogprobs(-(token % 97) / 10, 1) if spec.params.scored else None
        return Choice(token, logprobs)

    def _read(self, row: Row, place: int) -> int | None:
        block, slot = self._slot(row, place)
        return self._kv.get(block, {}).get(slot)

    def _slot(self, row: Row, position: int) -> tuple[BlockId, int]:
        return row.block_table[position // self._block_size], position % self._block_size


@dataclass
class MockNode:
    """Steps by hand; every step is followed by a check of all invariants."""

    num_blocks: int = 64
    block_size: int = 4
    num_cpu_blocks: int = 0
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 64
    commitment: Commitment = field(default_factory=Adaptive)
    preemption: PreemptionMode = PreemptionMode.RECOMPUTE
    executor: Any = None  # None: the mock model
    limits: dict[str, Any] = field(default_factory=dict)
    now: float = 0.0
    finished: dict[tuple[str, int], Sequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.executor = self.executor or MockExecutor(self.block_size)
        loader = getattr(self.executor, "swap", self.executor)
        self.memory = KvMemory(self.num_blocks, self.block_size, self.num_cpu_blocks, loader)
        self.pool = self.memory.pool
        self.scheduler = Scheduler(
            self.memory,
            Limits(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                **self.limits,
            ),
            self.commitment,
            PreemptionCosts(self.preemption, bytes_per_block=1),
        )
        self.counters = self.scheduler.counters
        if self.memory.loads is not None:
            self.memory.loads.done = self._loaded
        self._done: list[tuple[int, bool]] = []
        self._ids = count()

    def submit(self, prompt: Seq[int], max_tokens: int = 8, **options: Any) -> Sequence:
        """Queues a request; its first sample."""
        request = self.request(prompt, max_tokens, **options)
        self.scheduler.submit(request)
        return request.leader

    def request(
        self,
        prompt: Seq[int],
        max_tokens: int = 8,
        *,
        priority: int = 0,
        cache: bool = True,
        resumed: Seq[Progress] = (),
        **params: Any,
    ) -> Request:
        self.now += 0.001
        params = {"temperature": 0.0, "best_of": params.get("n", 1), **params}
        return Request(
            id=f"r{next(self._ids)}",
            prompt=tuple(prompt),
            params=SamplingParams(max_tokens=max_tokens, **params),
            eos_token_ids=frozenset({EOS}),
            keys=KeyChain(ROOT, self.block_size),
            arrival=self.now,
            priority=priority,
            use_cache=cache,
            resumed=resumed,
        )

    def step(self) -> int:
        """One step; returns the number of its rows."""
        self.now += 0.01
        self._deliver_loads()
        step = self.scheduler.schedule(self.now)
        results = self.executor.run(step.plan)
        for choice in self.scheduler.commit(step, results, self.now):
            if choice.finish_reason is not None:
                self.end(choice.sequence, choice.finish_reason)
        assert self.scheduler.check_integrity() == []
        return len(step.rows)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence, reason, self.now)
        name = (sequence.request.id, sequence.sample_index)
        assert name not in self.finished, "a sample ends once"
        self.finished[name] = sequence

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.abort(sequence.request.id, self.now)
        assert self.scheduler.check_integrity() == []

    def run(self, limit: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                self.assert_all_free()
                return
            assert self.step() or self.scheduler.roster.loading, "a step without progress"
        raise AssertionError(f"still busy after {limit} steps")

    def assert_all_free(self) -> None:
        """Nothing holds a block, those that are pinned or still being loaded apart."""
        self._deliver_loads()
        if not self.memory.pins and not self.memory.loads:
            assert self.pool.num_free == self.pool.num_blocks
            if self.memory.tier is not None:
                assert self.memory.tier.pool.num_held == 0

    def generate(self, prompt: Seq[int], max_tokens: int = 8, **options: Any) -> Sequence:
        sequence = self.submit(prompt, max_tokens, **options)
        self.run()
        return sequence

    def _loaded(self, number: int, whole: bool) -> None:
        self._done.append((number, whole))

    def _deliver_loads(self) -> None:
        done, self._done = self._done, []
        for number, whole in done:
            self.scheduler.loaded(number, whole)
        assert self.scheduler.check_integrity() == []

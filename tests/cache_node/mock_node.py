"""A node without torch: the real pool and scheduler, and a model that reads tokens back through the
block table.

The mock model's "KV" is the token itself, kept per block and slot. The next token is a hash of
everything that the table shows, so that one wrong, stale or unwritten block changes the output.
"""

import random
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

from cache_node.block_pool import BlockPool
from cache_node.key_chain import KeyChain
from cache_node.sampling import SamplingParams
from cache_node.scheduler import Limits, Scheduler
from cache_node.sequence import FinishReason, Sequence
from cache_node.step_plan import BlockId, Row, StepPlan

VOCAB = 50_000
EOS = 1
ROOT = b"r" * 16


def tokens(count: int, seed: int = 0) -> list[int]:
    """A prompt that is the same for the same arguments."""
    return random.Random(seed).choices(range(2, 1000), k=count)


def next_token(tokens: list[int]) -> int:
    digest = blake2b(repr(tokens).encode(), digest_size=8).digest()
    return 2 + int.from_bytes(digest, "little") % (VOCAB - 2)


def reference(prompt: list[int], max_tokens: int) -> list[int]:
    """What the mock model answers when it has the node for itself."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class MockExecutor:
    """Runs a plan as an executor does; an unwritten slot reads as None and spoils the output."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[tuple[BlockId, int], int] = {}
        self.plans: list[StepPlan] = []

    def run(self, plan: StepPlan) -> list[int | None]:
        self.plans.append(plan)
        for row in plan.rows:
            for place, token in enumerate(row.token_ids, row.start):
                self._slots[self._slot(row, place)] = token
        return [self._choose(row) if row.sample is not None else None for row in plan.rows]

    def _choose(self, row: Row) -> int:
        return next_token([self._slots.get(self._slot(row, place)) for place in range(row.end)])

    def _slot(self, row: Row, position: int) -> tuple[BlockId, int]:
        return row.block_table[position // self._block_size], position % self._block_size


@dataclass
class MockNode:
    """Steps by hand; every step is followed by a check of all invariants."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 64
    executor: Any = None  # None: the mock model
    now: float = 0.0
    finished: dict[str, Sequence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(
            self.pool, Limits(self.max_num_seqs, self.max_num_batched_tokens)
        )
        self.executor = self.executor or MockExecutor(self.block_size)
        self._ids = count()

    def submit(
        self, prompt: list[int], max_tokens: int = 8, *, priority: int = 0, cache: bool = True
    ) -> Sequence:
        self.now += 0.001
        sequence = Sequence(
            request_id=f"r{next(self._ids)}",
            tokens=list(prompt),
            prompt_tokens=len(prompt),
            params=SamplingParams(max_tokens=max_tokens, temperature=0.0),
            eos_token_ids=frozenset({EOS}),
            keys=KeyChain(ROOT, self.block_size),
            arrival=self.now,
            priority=priority,
            use_cache=cache,
        )
        self.scheduler.submit(sequence)
        return sequence

    def step(self) -> int:
        """One step; returns the number of its rows."""
        self.now += 0.01
        step = self.scheduler.schedule(self.now)
        tokens = self.executor.run(step.plan)
        for choice in self.scheduler.commit(step, tokens, self.now):
            if choice.finish_reason is not None:
                self.end(choice.sequence, choice.finish_reason)
        assert self.scheduler.check_integrity() == []
        return len(step.rows)

    def end(self, sequence: Sequence, reason: FinishReason) -> None:
        self.scheduler.finish(sequence, reason, self.now)
        assert sequence.request_id not in self.finished, "a request ends once"
        self.finished[sequence.request_id] = sequence

    def abort(self, sequence: Sequence) -> None:
        self.scheduler.abort(sequence.request_id, self.now)
        assert self.scheduler.check_integrity() == []

    def run(self, limit: int = 10_000) -> None:
        """Steps until nothing is left to do."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                assert self.pool.num_free == self.pool.num_blocks
                return
            assert self.step(), "a step without progress"
        raise AssertionError(f"still busy after {limit} steps")

    def generate(self, prompt: list[int], max_tokens: int = 8, **options: bool | int) -> Sequence:
        sequence = self.submit(prompt, max_tokens, **options)
        self.run()
        return sequence

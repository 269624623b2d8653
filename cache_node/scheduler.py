"""Continuous batching with chunked prefill: which tokens of whom the next step computes."""

from dataclasses import dataclass, field

from cache_node.block_pool import BlockPool
from cache_node.sequence import FinishReason, Sequence, State
from cache_node.step_plan import BlockId, Row, StepPlan
from cache_node.waiting_queue import WaitingQueue


@dataclass(frozen=True, slots=True)
class Limits:
    max_num_seqs: int  # sequences that run at once
    max_num_batched_tokens: (
        int  # tokens in one step, at least max_num_seqs, so that every decode finds room
    )
    watermark: float = 0.01  # share of the pool that an admission leaves free for those that run


@dataclass(slots=True)
class Step:
    """A plan under construction, and the sequences that its rows stand for, in the same order."""

    budget: int  # tokens
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)

    @property
    def plan(self) -> StepPlan:
        return StepPlan(self.rows)

    def add(self, sequence: Sequence) -> None:
        """Adds the next chunk of `sequence`, as much as the budget allows; its blocks are there
        already.
        """
        start = sequence.num_computed
        end = min(len(sequence.tokens), start + self.budget)
        sample = sequence.spec() if end == len(sequence.tokens) else None
        self.rows.append(
            Row(sequence.tokens[start:end], start, tuple(sequence.block_table), sample)
        )
        self.sequences.append(sequence)
        self.budget -= end - start

    def drop(self, sequence: Sequence) -> None:
        """Takes the row of `sequence` out again, if it has one."""
        if sequence in self.sequences:
            place = self.sequences.index(sequence)
            self.budget += len(self.rows.pop(place).token_ids)
            del self.sequences[place]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token that a step chose."""

    sequence: Sequence
    token: int
    finish_reason: FinishReason | None


class Scheduler:
    """Owns every live sequence and, through their block tables, all references into the pool.

        submit ──▶ WAITING ──admit──▶ RUNNING ──finish / abort──▶ FINISHED
                      ▲                  │
                      └──── preempt ─────┘  (PREEMPTED: first in the queue of its priority)

    A sequence is admitted with the blocks of all tokens that it has, so that a prefill never waits
    for memory half-way; decoding takes blocks on demand. Blocks are published in `commit`, after
    the step that filled them.
    """

    def __init__(self, pool: BlockPool, limits: Limits) -> None:
        self.pool = pool
        self.limits = limits
        self.running: list[Sequence] = []  # in order of admission
        self.waiting = WaitingQueue()
        self.preemptions = 0
        self.steps_without_progress = 0
        self.queried_tokens = 0  # prompt tokens looked up in the cache, once a sequence
        self.hit_tokens = 0  # those of them that were found
        self._live: dict[str, Sequence] = {}

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def live(self) -> list[Sequence]:
        return list(self._live.values())

    @property
    def queued_prefill_tokens(self) -> int:
        return self.waiting.uncomputed_prompt + sum(seq.uncomputed_prompt for seq in self.running)

    def submit(self, sequence: Sequence) -> None:
        """Queues a sequence. Raises ValueError for an id that is live, or that could never fit the
        pool.
        """
        if sequence.request_id in self._live:
            raise ValueError(f"request {sequence.request_id} is running already")
        needed = self.pool.blocks_for(sequence.prompt_tokens + sequence.params.max_tokens)
        if needed > self.pool.num_blocks:
            raise ValueError(
                f"prompt and output need {needed} blocks, the pool has {self.pool.num_blocks}"
            )
        self._live[sequence.request_id] = sequence
        self.waiting.push(sequence)

    def schedule(self, now: float) -> Step:
        """Plans the next step: the running first, and if that took nothing from anybody, the
        waiting.
        """
        step = Step(self.limits.max_num_batched_tokens)
        preempted = self._schedule_decodes(step)
        self._schedule_prefills(step)
        if not preempted:
            self._admit(step, now)
        self.steps_without_progress += self.has_work and not step.rows
        return step

    def commit(self, step: Step, tokens: list[int | None], now: float) -> list[Sampled]:
        """Books what the executor computed. Full blocks become visible here, not before."""
        sampled = []
        for sequence, row, token in zip(step.sequences, step.rows, tokens, strict=True):
            sequence.num_computed = row.end
            self._publish(sequence)
            if token is None:
                continue
            if sequence.first_token is None:
                sequence.first_token = now
            sampled.append(Sampled(sequence, token, sequence.append(token)))
        return sampled

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """Ends a live sequence and gives its blocks back. Between steps only. Does nothing for an
        ended one.
        """
        if self._live.pop(sequence.request_id, None) is None:
            return
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
            self._release(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.state, sequence.finish_reason, sequence.finished = State.FINISHED, reason, now

    def abort(self, request_id: str, now: float) -> Sequence | None:
        """Ends a sequence in whatever state it is; None if there is no such one. Between steps
        only.
        """
        sequence = self._live.get(request_id)
        if sequence is not None:
            self.finish(sequence, FinishReason.ABORT, now)
        return sequence

    def check_integrity(self) -> list[str]:
        """Violations of the pool's invariants and of the scheduler's own. O(pool): for tests and
        operators.
        """
        waiting = list(self.waiting)
        checks = {
            "a waiting sequence holds blocks": any(seq.block_table for seq in waiting),
            "live sequences are not those that run or wait": set(self._live.values())
            != {*self.running, *waiting},
            "a table does not cover its sequence": any(
                len(seq.block_table) < self.pool.blocks_for(seq.num_computed)
                for seq in self.running
            ),
            "count of waiting prompt tokens is wrong": self.waiting.uncomputed_prompt
            != sum(seq.uncomputed_prompt for seq in waiting),
        }
        violations = self.pool.check_integrity(seq.block_table for seq in self.running)
        return violations + [violation for violation, broken in checks.items() if broken]

    def _schedule_decodes(self, step: Step) -> bool:
        """Adds a row for each sequence with one token to compute. Returns whether one was preempted
        for it.
        """
        preempted = False
        for sequence in [seq for seq in self.running if seq.uncomputed == 1]:
            while sequence.state is State.RUNNING and not self._grow(sequence):
                victim = self._victim()
                step.drop(victim)
                self._preempt(victim)
                preempted = True
            if sequence.state is State.RUNNING:
                step.add(sequence)
        return preempted

    def _schedule_prefills(self, step: Step) -> None:
        for sequence in self.running:
            if step.budget and sequence.uncomputed > 1:
                step.add(sequence)

    def _admit(self, step: Step, now: float) -> None:
        while step.budget and len(self.running) < self.limits.max_num_seqs:
            sequence = self.waiting.first()
            if sequence is None:
                return
            hits = self._lookup(sequence)
            if not self._fits(sequence, hits):
                return
            self.waiting.pop_first()
            self._start(sequence, hits, now)
            step.add(sequence)

    def _lookup(self, sequence: Sequence) -> list[BlockId]:
        """Cached leading blocks, without the last token: one is always computed, into a block of
        one's own.

        Fresh at every try: the blocks may have changed since the last one.
        """
        if not sequence.use_cache:
            return []
        whole = (len(sequence.tokens) - 1) // self.pool.block_size
        return self.pool.lookup(sequence.keys.extend_to(sequence.tokens, whole))

    def _fits(self, sequence: Sequence, hits: list[BlockId]) -> bool:
        """Whether all its tokens have room, and those that run have blocks to spare."""
        spare = max(1, int(self.limits.watermark * self.pool.num_blocks)) if self.running else 0
        return self.pool.can_allocate(self._missing(sequence, len(hits)), hits, spare)

    def _start(self, sequence: Sequence, hits: list[BlockId], now: float) -> None:
        table = self.pool.allocate(self._missing(sequence, len(hits)), hits)
        assert table is not None, "the sequence fits"
        sequence.block_table = table
        sequence.num_published = len(hits)
        sequence.num_computed = len(hits) * self.pool.block_size
        sequence.state = State.RUNNING
        self.running.append(sequence)
        if sequence.first_scheduled is None:
            sequence.first_scheduled = now
            sequence.cached_tokens = sequence.num_computed
            self.queried_tokens += sequence.prompt_tokens if sequence.use_cache else 0
            self.hit_tokens += sequence.cached_tokens

    def _missing(self, sequence: Sequence, held: int) -> int:
        return self.pool.blocks_for(len(sequence.tokens)) - held

    def _grow(self, sequence: Sequence) -> bool:
        """Makes room for the newest token; False, and nothing changed, when there is no block."""
        blocks = self.pool.allocate(self._missing(sequence, len(sequence.block_table)))
        if blocks is None:
            return False
        sequence.block_table += blocks
        return True

    def _victim(self) -> Sequence:
        return max(self.running, key=lambda seq: (-seq.priority, seq.arrival))

    def _preempt(self, sequence: Sequence) -> None:
        """Gives the blocks back; what was computed is computed again, or found in the cache."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.state = State.PREEMPTED
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.push(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.free(sequence.block_table)
        sequence.block_table = []
        sequence.num_computed = sequence.num_published = 0

    def _publish(self, sequence: Sequence) -> None:
        full = sequence.num_computed // self.pool.block_size
        if not sequence.use_cache or full == sequence.num_published:
            return
        contents = sequence.keys.extend_to(sequence.tokens, full)
        for place in range(sequence.num_published, full):
            self.pool.publish(sequence.block_table[place], contents[place])
        sequence.num_published = full

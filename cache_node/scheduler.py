"""Continuous batching with chunked prefill: which tokens of whom the next step computes."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from cache_node.admitter import Admitter
from cache_node.commitment import Commitment, committed_blocks, most_blocks
from cache_node.limits import Counters, Limits
from cache_node.memory import KvMemory
from cache_node.preemption import Preempter, PreemptionCosts, least_important
from cache_node.roster import Roster
from cache_node.sampling import Choice
from cache_node.sequence import FinishReason, Request, Sequence, State
from cache_node.step import Step
from cache_node.step_plan import RowResult


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step chose for a sample; `choice` is None when only the prompt was to be computed."""

    sequence: Sequence
    choice: Choice | None
    finish_reason: FinishReason | None


class Scheduler:
    """Owns every live request and, through block tables, all references that they hold.

        submit ──▶ WAITING ──admit──▶ RUNNING ──finish / abort──▶ FINISHED
                     ▲  │               ▲ │
                     │  └──▶ LOADING ───┘ │
                     └───── preempt ──────┘   (PREEMPTED: first in the queue of its priority)

    A sequence is admitted with the blocks of all tokens that it has, so that a prefill never waits
    for memory half-way; decoding takes blocks on demand. Blocks are published in `commit`, after
    the step that filled them. Everything is called between two steps.
    """

    def __init__(
        self, memory: KvMemory, limits: Limits, commitment: Commitment, costs: PreemptionCosts
    ) -> None:
        self.memory = memory
        self.limits = limits
        self.costs = costs
        self.counters = Counters()
        self.roster = Roster()
        self._commitment = commitment
        self._preempter = Preempter(memory, self.roster, costs, self.counters)
        self._admitter = Admitter(
            memory, self.roster, limits, commitment, self._preempter, self.counters
        )

    @property
    def committed_blocks(self) -> int:
        """What of the pool is given away, see `commitment.committed_blocks`."""
        return committed_blocks(self.roster, self.memory.pool, self._commitment.share)

    @property
    def growth_share(self) -> float:
        return self._commitment.share

    @property
    def has_work(self) -> bool:
        return bool(self.roster.requests)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises ValueError for an id that is live, or one that can never fit."""
        if request.id in self.roster.requests:
            raise ValueError(f"request {request.id} is running already")
        needed, total = most_blocks(request.leader, self.memory.pool), self.memory.pool.num_blocks
        if needed > total:
            raise ValueError(f"prompt and output need {needed} blocks, the pool has {total}")
        if request.samples > self.limits.max_num_seqs:
            raise ValueError(
                f"{request.samples} samples, but at most {self.limits.max_num_seqs} run at once"
            )
        self.roster.enter(request)

    def schedule(self, now: float) -> Step:
        """Plans the next step: the running first, and if that took nothing from anybody, the
        waiting.
        """
        step = Step(self.limits.max_num_batched_tokens)
        self.memory.pins.expire(now)
        self._give_up_loads(now)
        preempted = self._schedule_decodes(step)
        self._schedule_prefills(step, now, may_admit=not preempted)
        if not preempted:
            self._admitter.admit(step, now)
        step.offloads = self.memory.pending_offloads
        self._commitment.stepped()
        stuck = self.has_work and not step.rows and not self.roster.loading
        self.counters.steps_without_progress += stuck
        return step

    def commit(self, step: Step, results: Seq[RowResult], now: float) -> list[Sampled]:
        """Books what the executor computed. Full blocks become visible here, not before."""
        sampled: list[Sampled] = []
        for sequence, row, result in zip(step.sequences, step.rows, results, strict=True):
            sequence.num_computed = row.end
            sequence.request.prompt_logprobs.extend(result.prompt_logprobs)
            self.memory.publish(sequence)
            if not sequence.uncomputed:
                self.roster.leaders.leave(sequence)
                sampled += self._choose(sequence, result.choices, now)
        self.memory.commit(step)
        return sampled

    def rollback(self, step: Step) -> None:
        """The step failed on the device: nothing of it counts. Its sequences are the caller's to
        end; those that it swapped out are computed again.
        """
        self.memory.rollback(step)
        for sequence in step.swapped:
            self.memory.forget(sequence)

    def loaded(self, number: int, whole: bool) -> None:
        """The loader is done with a load."""
        load = self.memory.finish_load(number, whole)
        if load is None or load.sequence is None:
            return
        if whole:
            self.memory.loaded(load.sequence, load.tokens)
            self.roster.loading.remove(load.sequence)
            self.roster.run(load.sequence, self.memory.pool.block_size)
        else:
            self._load_failed(load.sequence)

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """Ends a sample and gives everything back. Does nothing for an ended one."""
        if sequence.state is State.FINISHED:
            return
        self.roster.withdraw(sequence)
        self.memory.forget(sequence)
        sequence.state, sequence.finish_reason = State.FINISHED, reason
        self.counters.finished(reason)
        request = sequence.request
        request.unfinished -= 1
        if request.unfinished == 0:
            request.finished = now
            del self.roster.requests[request.id]

    def abort(self, request_id: str, now: float) -> Request | None:
        """Ends a request in whatever state its samples are; None if there is no such one."""
        request = self.roster.requests.get(request_id)
        if request is not None:
            live = request.live
            request.unfinished = len(live)  # samples that were not made never will be
            for sequence in live:
                self.finish(sequence, FinishReason.ABORT, now)
        return request

    def check_integrity(self) -> list[str]:
        """Violations of the pools' invariants and of the scheduler's own. O(pool): for tests and
        operators.
        """
        tables = [seq.block_table for seq in self.roster.admitted]
        swapped = [seq.swapped for seq in self.roster]
        return self.memory.check_integrity(tables, swapped) + self.roster.violations()

    def _schedule_decodes(self, step: Step) -> bool:
        """Adds a row for each sequence with one token to compute. Returns whether one was preempted
        for it.
        """
        preempted = False
        for sequence in [seq for seq in self.roster.running if seq.uncomputed == 1]:
            while sequence.state is State.RUNNING and not self.memory.grow(sequence, step):
                preempted |= self._take_from_somebody(step)
            if sequence.state is State.RUNNING:
                step.add(sequence)
        return preempted

    def _take_from_somebody(self, step: Step) -> bool:
        """Frees blocks for a decode; whether a sequence was preempted for it."""
        running = self.roster.running
        if len(running) == 1 and self.memory.pins.yield_one():
            return False
        self._preempter.preempt(least_important(running), step)
        self._commitment.preempted()
        return True

    def _schedule_prefills(self, step: Step, now: float, may_admit: bool) -> None:
        """Adds chunks of prompts, the more important first; those that wait and are more important
        than the least of them go before.
        """
        prefilling = [seq for seq in self.roster.running if seq.uncomputed > 1]
        prefilling.sort(key=lambda seq: -seq.request.priority)
        if prefilling and may_admit:
            self._admitter.admit(step, now, above=prefilling[-1].request.priority)
        for sequence in prefilling:
            if step.budget and sequence.state is State.RUNNING:
                step.add(sequence)

    def _choose(self, leader: Sequence, choices: Seq[Choice], now: float) -> list[Sampled]:
        """Books the chosen tokens, one a sample; a prompt with several is forked first."""
        if leader.request.first_token is None:
            leader.request.first_token = now
        if not choices:
            return [Sampled(leader, None, FinishReason.LENGTH)]
        samples = [leader, *(self.memory.fork(leader, i) for i in range(1, len(choices)))]
        self.roster.running += samples[1:]
        self.counters.output_tokens += len(choices)
        return [
            Sampled(sample, choice, sample.append(choice))
            for sample, choice in zip(samples, choices, strict=True)
        ]

    def _give_up_loads(self, now: float) -> None:
        for sequence in self.memory.overdue(now):
            self._load_failed(sequence)

    def _load_failed(self, sequence: Sequence) -> None:
        """Back to the queue. What was to be loaded is computed, at the latest after a few tries."""
        self.counters.failed_loads += 1
        sequence.failed_loads += 1
        self.roster.withdraw(sequence)
        self.memory.forget(sequence)
        self.roster.requeue(sequence)

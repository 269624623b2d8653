"""Who of the waiting starts in this step."""

from dataclasses import dataclass

from cache_node.commitment import Commitment
from cache_node.limits import Counters, Limits
from cache_node.memory import KvMemory
from cache_node.preemption import Preempter, least_important
from cache_node.reuse import Reuse
from cache_node.roster import Roster
from cache_node.sequence import Sequence, State
from cache_node.step import Step


@dataclass(frozen=True, slots=True)
class Admitter:
    """Starts waiting sequences in the order of the queue. One that does not fit may be overtaken
    for a while; one whose prefix another is computing lets others pass until it is there.
    """

    memory: KvMemory
    roster: Roster
    limits: Limits
    commitment: Commitment
    preempter: Preempter
    counters: Counters

    def admit(self, step: Step, now: float, above: int | None = None) -> None:
        """Starts what fits, and with `above` only what is more important than that priority."""
        blocked: list[Sequence] = []
        for sequence in self.roster.waiting.first(self.limits.look_ahead):
            if above is not None and sequence.request.priority <= above:
                return
            if not step.budget or any(map(self._stays_first, blocked)):
                return
            if not self._may_have_seat(sequence):
                blocked.append(sequence)
                continue
            reuse = self.memory.find_reuse(sequence)
            if self._waits_for_leader(sequence, reuse, now):
                continue
            room = self._make_room(sequence, reuse, step)
            if room is None:
                blocked.append(sequence)
                continue
            self._start(sequence, room, step, now)
            for each in blocked:
                each.overtaken += 1
            self.counters.overtakes += bool(blocked)

    def _stays_first(self, sequence: Sequence) -> bool:
        """Whether nobody may pass it: it has run before, or has been passed often enough."""
        return sequence.state is State.PREEMPTED or sequence.overtaken >= self.limits.max_overtakes

    def _may_have_seat(self, sequence: Sequence) -> bool:
        """Asked before the look-up, which costs a little for every block of the prompt."""
        return self._has_seat(sequence) or bool(self._less_important(sequence))

    def _waits_for_leader(self, sequence: Sequence, reuse: Reuse, now: float) -> bool:
        """Whether another is computing the next block that it lacks, and the wait is not too long.

        Asked again at every step, so a chunk that the leader publishes, or its end, is seen at
        once.
        """
        if reuse.missing is None or self.roster.leaders.of(reuse.missing) is None:
            return False
        if sequence.waits_since is None:
            sequence.waits_since = now
            self.counters.prefix_waits += 1
        return now - sequence.waits_since < self.limits.prefix_wait

    def _make_room(self, sequence: Sequence, reuse: Reuse, step: Step) -> Reuse | None:
        """What it can start with, if need be after less important ones have given their place;
        None when it cannot start now.
        """
        if self._fits(sequence, reuse):
            return reuse
        lower = self._less_important(sequence)
        if lower and self._would_fit_without(lower, sequence, reuse):
            return self._preempt_for(sequence, lower, step)
        return None if self.roster.admitted else self._unpin_for(sequence)

    def _less_important(self, sequence: Sequence) -> list[Sequence]:
        return [s for s in self.roster.running if s.request.priority < sequence.request.priority]

    def _preempt_for(self, sequence: Sequence, lower: list[Sequence], step: Step) -> Reuse | None:
        while lower:
            victim = least_important(lower)
            lower.remove(victim)
            self.preempter.preempt(victim, step)
            self.counters.preempted_for_priority += 1
            reuse = self.memory.find_reuse(sequence)
            if self._fits(sequence, reuse):
                return reuse
        return None

    def _unpin_for(self, sequence: Sequence) -> Reuse | None:
        """Nothing runs, so only pins are in its way: a request is worth more than they are."""
        while self.memory.pins.yield_one():
            reuse = self.memory.find_reuse(sequence)
            if self._fits(sequence, reuse):
                return reuse
        return None

    def _has_seat(self, sequence: Sequence) -> bool:
        taken = sum(max(1, seq.unmade_samples) for seq in self.roster.admitted)
        return taken + max(1, sequence.unmade_samples) <= self.limits.max_num_seqs

    def _fits(self, sequence: Sequence, reuse: Reuse) -> bool:
        pool = self.memory.pool
        spare = self.commitment.spare(sequence, self.roster.admitted, pool)
        if spare is None or not self._has_seat(sequence):
            return False
        return pool.can_allocate(self.memory.missing(sequence, reuse), reuse.sources, spare)

    def _would_fit_without(self, lower: list[Sequence], sequence: Sequence, reuse: Reuse) -> bool:
        """Too hopeful where blocks are shared, never too gloomy: nobody is preempted for nothing
        that could have been known.
        """
        freed = sum(len(seq.block_table) for seq in lower)
        return self.memory.missing(sequence, reuse) <= self.memory.pool.num_free + freed

    def _start(self, sequence: Sequence, reuse: Reuse, step: Step, now: float) -> None:
        self.roster.waiting.remove(sequence)
        self._account(sequence, reuse, now)
        if self.memory.start(sequence, reuse, step, now):
            self.roster.run(sequence, self.memory.pool.block_size)
            step.add(sequence)
        else:
            self.roster.load(sequence)

    def _account(self, sequence: Sequence, reuse: Reuse, now: float) -> None:
        """Once a request, however often it is tried or preempted."""
        request = sequence.request
        if request.first_scheduled is not None:
            return
        request.first_scheduled = now
        found = min(reuse.tokens, len(request.prompt))  # of one that goes on, output may be cached
        request.loaded_tokens = min(found, len(reuse.cpu) * self.memory.pool.block_size)
        request.cached_tokens = found - request.loaded_tokens
        self.counters.queried_tokens += len(request.prompt) if request.use_cache else 0
        self.counters.hit_tokens += request.cached_tokens
        self.counters.loaded_tokens += request.loaded_tokens

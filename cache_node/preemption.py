"""Taking blocks away from a running sequence, and what it costs to give them back."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from cache_node.limits import Counters
from cache_node.memory import KvMemory
from cache_node.roster import Roster
from cache_node.sequence import Sequence
from cache_node.step import Step

MAX_FAILED_LOADS = 2
"""After so many a sequence computes its tokens instead of swapping them."""


class PreemptionMode(Enum):
    AUTO = "auto"  # by cost
    SWAP = "swap"
    RECOMPUTE = "recompute"


@dataclass(slots=True)
class PreemptionCosts:
    """Measured speeds, kept up to date by the engine; 0 until known."""

    mode: PreemptionMode
    bytes_per_block: int
    copy_bytes_per_second: float = 0.0
    prefill_tokens_per_second: float = 0.0

    def prefers_swap(self, tokens: int, blocks: int) -> bool:
        """Whether copying `blocks` out and in is cheaper than computing `tokens` again."""
        if self.mode is not PreemptionMode.AUTO:
            return self.mode is PreemptionMode.SWAP
        if not self.copy_bytes_per_second or not self.prefill_tokens_per_second:
            return True  # a copy moves bytes that computing them would read many times
        copying = 2 * blocks * self.bytes_per_block / self.copy_bytes_per_second
        return copying < tokens / self.prefill_tokens_per_second


@dataclass(frozen=True, slots=True)
class Preempter:
    """Puts running sequences back into the queue."""

    memory: KvMemory
    roster: Roster
    costs: PreemptionCosts
    counters: Counters

    def preempt(self, sequence: Sequence, step: Step) -> None:
        """Takes all blocks away. What was computed is swapped out, or computed again later."""
        step.drop(sequence, self.memory.pool)
        self.roster.withdraw(sequence)
        if self._swap_out(sequence):
            step.swapped.append(sequence)
            self.counters.preempted_by_swap += 1
        else:
            self.counters.preempted_by_recompute += 1
        self.memory.release(sequence)
        sequence.request.preemptions += 1
        self.roster.requeue(sequence)

    def _swap_out(self, sequence: Sequence) -> bool:
        blocks = self.memory.pool.blocks_for(sequence.num_computed)
        return (
            sequence.failed_loads < MAX_FAILED_LOADS
            and self.costs.prefers_swap(sequence.num_computed, blocks)
            and self.memory.swap_out(sequence)
        )


def least_important(sequences: Iterable[Sequence]) -> Sequence:
    """Who is preempted first: the lowest priority, then the last arrival, then the last sample."""
    return max(
        sequences, key=lambda seq: (-seq.request.priority, seq.request.arrival, seq.sample_index)
    )

"""How much of the pool is promised to those that run: who may be admitted beside them."""

from collections.abc import Sequence as Seq
from math import ceil
from typing import Protocol

from cache_node.block_pool import BlockPool
from cache_node.roster import Roster
from cache_node.sequence import Sequence


class Commitment(Protocol):
    """Decides on memory for an admission. Told of preemptions and steps, it may learn from them.

    `share` is what it counts of the growth that is possible: 1 for all of it.
    """

    @property
    def share(self) -> float: ...

    def spare(self, newcomer: Sequence, running: Seq[Sequence], pool: BlockPool, /) -> int | None:
        """Blocks that must stay free once all present tokens of `newcomer` have theirs; None when
        it may not start beside `running` whatever is free.
        """

    def preempted(self) -> None:
        """A sequence lost its blocks because those that run outgrew the pool."""

    def stepped(self) -> None:
        """A step went by."""


class Strict:
    """Commits every sample's longest end: what is admitted is never preempted for memory."""

    share = 1.0

    def spare(self, newcomer: Sequence, running: Seq[Sequence], pool: BlockPool) -> int | None:
        return sum(most_growth(seq, pool) for seq in (*running, newcomer))

    def preempted(self) -> None:
        raise AssertionError("a strict commitment is never preempted for memory")

    def stepped(self) -> None:
        pass


class Adaptive:
    """Commits a share of the growth that is possible, and learns the share from preemptions.

    The share falls a little with every step and rises with every preemption: the estimate of
    SGLang's scheduler (new_token_ratio), with its bounds.
    """

    LEAST, START, MOST = 0.1, 0.4, 1.0
    RISE, FALL = 0.1, 0.001

    def __init__(self) -> None:
        self.share = self.START

    def spare(self, newcomer: Sequence, running: Seq[Sequence], pool: BlockPool) -> int | None:
        if not running and newcomer.params.best_of == 1:
            return 0  # alone it always fits, whatever it grows to
        return int(self.share * sum(most_growth(seq, pool) for seq in (*running, newcomer)))

    def preempted(self) -> None:
        self.share = min(self.MOST, self.share + self.RISE)

    def stepped(self) -> None:
        self.share = max(self.LEAST, self.share - self.FALL)


class Greedy:
    """First come, first served, by what is free now: the baseline that preempts most."""

    share = 0.0

    def spare(self, _newcomer: Sequence, _running: Seq[Sequence], _pool: BlockPool) -> int | None:
        return 0

    def preempted(self) -> None:
        pass

    def stepped(self) -> None:
        pass


class Static(Strict):
    """The traditional way: a batch is filled, and nothing joins it until all of it has ended."""

    def spare(self, newcomer: Sequence, running: Seq[Sequence], pool: BlockPool) -> int | None:
        if any(seq.num_computed > seq.request.cached_tokens for seq in running):
            return None
        return super().spare(newcomer, running, pool)


def committed_blocks(roster: Roster, pool: BlockPool, share: float) -> int:
    """Blocks that are held, that those who hold them are expected to grow by, and that the waiting
    will take. May exceed the pool. Shared blocks count once, as far as they are held.
    """
    growth = owed = 0
    for sequence in roster.admitted:
        growth += most_growth(sequence, pool)
        # The block of a token that was just chosen is taken when the token is computed.
        owed += pool.blocks_for(len(sequence.tokens)) - len(sequence.block_table)
    waiting = roster.waiting
    empty = len(waiting) * (pool.block_size - 1)  # slots at most, in the last blocks
    slots = waiting.tokens + share * waiting.growth + empty
    return pool.num_held + owed + ceil(share * growth + slots / pool.block_size)


def most_growth(sequence: Sequence, pool: BlockPool) -> int:
    """Blocks that a sequence, and the samples that it will be forked into, can still take."""
    longest = pool.blocks_for(sequence.max_len)
    grown = longest - pool.blocks_for(len(sequence.tokens)) + _pending_copy(sequence, pool)
    if (copies := sequence.unmade_samples) > 1:
        # A fork shares the whole blocks of the prompt, and copies the last one if that is not full.
        grown += (copies - 1) * (longest - sequence.prompt_tokens // pool.block_size)
    return grown


def most_blocks(sequence: Sequence, pool: BlockPool) -> int:
    """Blocks that a request needs at its longest, all samples together."""
    return pool.blocks_for(len(sequence.tokens)) + most_growth(sequence, pool)


def _pending_copy(sequence: Sequence, pool: BlockPool) -> bool:
    """Whether the block that is written next is shared, so that writing takes a block."""
    place, within = divmod(sequence.num_computed, pool.block_size)
    return (
        within > 0
        and place < len(sequence.block_table)
        and pool.references(sequence.block_table[place]) > 1
    )

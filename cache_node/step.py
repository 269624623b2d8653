"""A plan under construction."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import NamedTuple

from cache_node.block_pool import BlockPool
from cache_node.sequence import Sequence
from cache_node.step_plan import BlockCopy, BlockId, Row, StepPlan


class _Copy(NamedTuple):
    """A copy into the block at `place` of a sequence's table."""

    sequence: Sequence
    place: int
    source: BlockId
    destination: BlockId


@dataclass(slots=True)
class Step:
    """Rows, and the sequences that they stand for in the same order; the copies they need.

    The step owns one reference on each source of a copy, until the copy has run.
    """

    budget: int  # tokens
    rows: list[Row] = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    offloads: Seq[BlockCopy] = ()
    swapped: list[Sequence] = field(default_factory=list)  # preempted, their blocks in `offloads`
    _copies: list[_Copy] = field(default_factory=list)

    @property
    def plan(self) -> StepPlan:
        copies = [BlockCopy(copy.source, copy.destination) for copy in self._copies]
        return StepPlan(self.rows, copies, self.offloads)

    @property
    def sources(self) -> list[BlockId]:
        return [copy.source for copy in self._copies]

    def add(self, sequence: Sequence) -> None:
        """Adds the next chunk of `sequence`, as much as the budget allows; its blocks are there."""
        start = sequence.num_computed
        end = min(len(sequence.tokens), start + self.budget)
        complete = end == len(sequence.tokens)
        wanted = sequence.params.prompt_logprobs
        targets: Seq[int] = ()
        if sequence.scores_prompt:
            targets = sequence.tokens[start + 1 : min(end + 1, sequence.prompt_tokens)]
        self.rows.append(
            Row(
                sequence.tokens[start:end],
                start,
                tuple(sequence.block_table),
                sequence.specs() if complete else (),
                targets,
                wanted or 0,
            )
        )
        self.sequences.append(sequence)
        self.budget -= end - start

    def copy(self, sequence: Sequence, place: int, source: BlockId) -> None:
        """Fills the block at `place` of the table from `source`, whose reference the step takes."""
        self._copies.append(_Copy(sequence, place, source, sequence.block_table[place]))

    def references(self, block: BlockId) -> int:
        """How many references on `block` the step has, as a source of copies."""
        return sum(copy.source == block for copy in self._copies)

    def drop(self, sequence: Sequence, pool: BlockPool) -> None:
        """Takes row and copies of `sequence` out again; its table is as it was before the step."""
        for copy in [copy for copy in self._copies if copy.sequence is sequence]:
            self._copies.remove(copy)
            sequence.block_table[copy.place] = copy.source
            pool.free([copy.destination])
        if sequence in self.sequences:
            place = self.sequences.index(sequence)
            self.budget += len(self.rows.pop(place).token_ids)
            del self.sequences[place]

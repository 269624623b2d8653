"""The boundary between scheduler and executor: what one engine step computes, and what came out.

Plain data without torch. Every rank of a parallel group receives the same plan with the same block
ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cache_node.sampling import SampleSpec

BlockId = int

NULL_BLOCK: BlockId = 0
"""Never allocated: padding in a block table points here."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one whole block inside the pool, before the step's rows run."""

    source: BlockId
    destination: BlockId


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence's share of a step: a chunk of its prompt, or its newest token.

    The KV of positions [0, start) is in the blocks of `block_table`; the step writes [start, start
    + len(token_ids)), which the table covers as well.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[BlockId]
    sample: SampleSpec | None  # None: the chunk ends before the prompt does, and no token is chosen

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    rows: Sequence[Row]
    copies: Sequence[BlockCopy] = field(default=())

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


class Executor(Protocol):
    """Runs plans against the KV pool that it owns. One call at a time, from the engine's thread.

    `run` returns one entry a row, in the plan's order: the chosen token id, or None where nothing
    was to be chosen. When it returns, the KV of every row has been written. It raises only when the
    device itself failed.
    """

    def run(self, plan: StepPlan) -> list[int | None]: ...

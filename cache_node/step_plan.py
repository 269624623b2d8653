"""The boundary between scheduler and executor: what one engine step computes, and what came out.

Plain data without torch. Every rank of a parallel group receives the same plan with the same block
ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from cache_node.sampling import Choice, SampleSpec, TokenLogprobs

BlockId = int

NULL_BLOCK: BlockId = 0
"""Never allocated: padding in a block table points here."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one whole block. The list that the copy is in says which pools the two ids name."""

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
    # One token is chosen for each; none when the chunk ends before the prompt does, several when a
    # prompt with n > 1 is complete.
    samples: Sequence[SampleSpec] = ()
    # Tokens of the prompt whose log-probabilities are asked for: `targets[i]` follows
    # `token_ids[i]`, and `prompt_logprobs` of the most probable ones are reported with each.
    targets: Sequence[int] = ()
    prompt_logprobs: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Runs in this order: `offloads`, `copies`, then all rows as one batch.

    `offloads` copy from the KV pool to the CPU pool, before anything overwrites their sources.
    `copies` stay inside the KV pool; no destination of a copy is a source in the same plan.
    """

    rows: Sequence[Row]
    copies: Sequence[BlockCopy] = ()
    offloads: Sequence[BlockCopy] = ()

    @property
    def num_tokens(self) -> int:
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True)
class RowResult:
    """What a row gave: a choice for each of its `samples`, log-probabilities for its `targets`."""

    choices: Sequence[Choice] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


class Executor(Protocol):
    """Runs plans against the KV pool that it owns. One call at a time, from the engine's thread.

    `run` returns one result a row, in the plan's order. When it returns, the KV of every row has
    been written and every offload can be read back. It raises only when the device itself failed.
    """

    def run(self, plan: StepPlan) -> Sequence[RowResult]: ...

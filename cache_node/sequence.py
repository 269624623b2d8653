"""One sample of one request, from arrival to its last token."""

from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import Enum, auto

from cache_node.key_chain import KeyChain
from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import BlockId


class State(Enum):
    WAITING = auto()
    RUNNING = auto()
    PREEMPTED = auto()  # waiting again, its blocks given back
    FINISHED = auto()


class FinishReason(Enum):
    STOP = auto()  # end of sequence, a stop token or a stop string
    LENGTH = auto()
    ABORT = auto()


@dataclass(slots=True, eq=False)
class Sequence:
    """A sequence owns one reference on each block of its table, and gives them back when it leaves
    RUNNING.

    `tokens` is prompt and output; the KV of the first `num_computed` of them is in the blocks.
    """

    request_id: str
    tokens: list[int]
    prompt_tokens: int
    params: SamplingParams
    eos_token_ids: frozenset[int]
    keys: KeyChain
    arrival: float  # seconds of the injected clock
    priority: int = 0
    use_cache: bool = True
    state: State = State.WAITING
    block_table: list[BlockId] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0  # blocks
    cached_tokens: int = 0  # of the prompt, at the first admission
    preemptions: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None
    finish_reason: FinishReason | None = None

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def uncomputed_prompt(self) -> int:
        return max(0, self.prompt_tokens - self.num_computed)

    @property
    def output(self) -> Tokens[int]:
        return self.tokens[self.prompt_tokens :]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    def spec(self) -> SampleSpec:
        """How to choose the token behind the last one."""
        early = self.num_output < self.params.min_tokens
        banned = (*self.eos_token_ids, *self.params.stop_token_ids) if early else ()
        return SampleSpec(self.params, position=len(self.tokens), banned=banned)

    def append(self, token: int) -> FinishReason | None:
        """Adds a chosen token; returns why the sequence ends with it, if it does."""
        self.tokens.append(token)
        if token in self.params.stop_token_ids or self._is_end(token):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_output >= self.params.max_tokens else None

    def _is_end(self, token: int) -> bool:
        return token in self.eos_token_ids and not self.params.ignore_eos

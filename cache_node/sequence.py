"""One request and its samples, from arrival to the last token."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import Enum, auto

from cache_node.key_chain import KeyChain
from cache_node.sampling import Choice, SampleSpec, SamplingParams, TokenLogprobs
from cache_node.step_plan import BlockId
from kvmesh.packing import Tokens, tokens_of


class State(Enum):
    WAITING = auto()
    LOADING = auto()  # holds its blocks; some are on their way from the CPU pool
    RUNNING = auto()
    PREEMPTED = auto()  # waiting again, its blocks given back
    FINISHED = auto()


class FinishReason(Enum):
    STOP = auto()  # end of sequence, a stop token or a stop string
    LENGTH = auto()
    ABORT = auto()


@dataclass(frozen=True, slots=True)
class Progress:
    """What a sample has produced on another node, which is not there any more."""

    output: Seq[int]
    finished: bool = False


@dataclass(slots=True, eq=False)
class Request:
    """What all samples of a request share. Times are seconds of the injected clock.

    A request that goes on here has an entry of `resumed` for each sample, one of them unfinished.
    Each sample is then a sequence from the start, as if it had been preempted.
    """

    id: str
    prompt: Seq[int]
    params: SamplingParams
    eos_token_ids: frozenset[int]
    keys: KeyChain
    arrival: float
    priority: int = 0  # larger runs first
    use_cache: bool = True
    resumed: Seq[Progress] = ()
    sequences: "list[Sequence]" = field(default_factory=list)  # one until the prompt is computed
    leader: "Sequence" = field(init=False)  # the sample that computes the prompt
    unfinished: int = 1  # samples, those not made yet among them
    cached_tokens: int = 0  # of the prompt, found in the KV pool at the first admission
    loaded_tokens: int = 0  # of the prompt, loaded from the CPU pool
    preemptions: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    first_scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None

    def __post_init__(self) -> None:
        for index, progress in enumerate(self.resumed or (Progress(()),)):
            tokens = tokens_of(self.prompt)
            tokens.extend(progress.output)
            state = State.FINISHED if progress.finished else State.WAITING
            self.sequences.append(Sequence(self, tokens, self.keys.fork(), index, state))
        self.leader = self.live[0]
        self.unfinished = len(self.live) if self.resumed else self.samples

    @property
    def samples(self) -> int:
        """How many are made."""
        return self.params.best_of if self.params.max_tokens else 1

    @property
    def live(self) -> "list[Sequence]":
        """The samples that have been made and have not ended."""
        return [seq for seq in self.sequences if seq.state is not State.FINISHED]


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample. It owns one reference on each block of its table, and on each block of `swapped`,
    and gives them back when it stops running.

    `tokens` is prompt and output; the KV of the first `num_computed` of them is in the blocks.
    """

    request: Request
    tokens: "Tokens[int]"
    keys: KeyChain
    sample_index: int = 0
    state: State = State.WAITING
    block_table: list[BlockId] = field(default_factory=list)
    num_computed: int = 0
    num_published: int = 0  # blocks
    swapped: list[BlockId] = field(default_factory=list)  # of the CPU pool, while preempted
    swapped_tokens: int = 0  # whose KV is in them
    failed_loads: int = 0
    waits_since: float | None = None  # for another to compute its prefix
    overtaken: int = 0  # by later ones while it did not fit
    last_token: float | None = None  # when the newest was chosen; for the metrics alone
    score: float = 0.0  # sum of the output's log-probabilities, when they are made
    finish_reason: FinishReason | None = None

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def uncomputed(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def uncomputed_prompt(self) -> int:
        return max(0, self.prompt_tokens - self.num_computed)

    @property
    def output(self) -> Seq[int]:
        return self.tokens[self.prompt_tokens :].tolist()

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def max_len(self) -> int:
        """Tokens of prompt and output when the sample ends at the latest."""
        return self.prompt_tokens + self.params.max_tokens

    @property
    def growth(self) -> int:
        """Tokens that it, and the samples that will be forked from it, can still come to."""
        return max(1, self.unmade_samples) * (self.max_len - len(self.tokens))

    @property
    def unmade_samples(self) -> int:
        """Samples that will be forked from this one when its prompt is computed, itself included;
        0 once that has happened.
        """
        forked = self.num_output > 0 or self.sample_index > 0 or len(self.request.resumed) > 0
        return 0 if forked else self.request.samples

    @property
    def scores_prompt(self) -> bool:
        """Whether log-probabilities of the prompt are wanted, and are its to compute still."""
        wanted = self.params.prompt_logprobs is not None and self is self.request.leader
        return wanted and len(self.request.prompt_logprobs) < self.prompt_tokens - 1

    def specs(self) -> list[SampleSpec]:
        """How to choose what follows the last token: once, or once a sample that is to be made."""
        if self.params.max_tokens == 0:
            return []
        indices = range(self.unmade_samples) if self.unmade_samples else [self.sample_index]
        return [self._spec(index) for index in indices]

    def fork(self, sample_index: int, block_table: list[BlockId]) -> "Sequence":
        """Another sample of the computed prompt, with its own references on the same blocks."""
        sample = Sequence(
            self.request,
            tokens_of(self.request.prompt),
            self.keys.fork(),
            sample_index,
            State.RUNNING,
            block_table,
            self.num_computed,
            self.num_published,
        )
        self.request.sequences.append(sample)
        return sample

    def append(self, choice: Choice) -> FinishReason | None:
        """Adds a chosen token; returns why the sample ends with it, if it does."""
        self.tokens.append(choice.token)
        if choice.logprobs is not None:
            self.score += choice.logprobs.logprob
        if choice.token in self.params.stop_token_ids or self._is_end(choice.token):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.num_output >= self.params.max_tokens else None

    def _spec(self, sample_index: int) -> SampleSpec:
        early = self.num_output < self.params.min_tokens
        ends = (*self.request.eos_token_ids, *self.params.stop_token_ids) if early else ()
        if not self.params.penalised:
            return SampleSpec(self.params, len(self.tokens), sample_index, ends)
        return SampleSpec(
            self.params, len(self.tokens), sample_index, ends, self.request.prompt, self.output
        )

    def _is_end(self, token: int) -> bool:
        return token in self.request.eos_token_ids and not self.params.ignore_eos

"""How a request wants its tokens chosen: plain data, shared by the scheduler, the sampler and the
service.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The sampling part of one request. The names and defaults are vLLM's."""

    max_tokens: int = 16  # 0 computes the prompt only
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps the whole vocabulary
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1], relative to the most probable token
    seed: int = 0  # 64 bits; the router picks one when the client sent none
    repetition_penalty: float = 1.0  # (0, 10], over prompt and output; 1 is none
    presence_penalty: float = 0.0  # [-2, 2], over the output
    frequency_penalty: float = 0.0  # [-2, 2], per occurrence in the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # token id → what is added
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # end-of-sequence and stop tokens cannot be chosen before so many
    n: int = 1  # samples that the client gets
    best_of: int = 1  # samples that are made, at least n
    logprobs: int | None = None  # report so many of the most probable tokens; 0: the chosen alone
    prompt_logprobs: int | None = None  # the same for the prompt's tokens

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """Whether the tokens so far weigh on the next choice."""
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    @property
    def scored(self) -> bool:
        """Whether the log-probability of each chosen token is needed."""
        return self.logprobs is not None or self.best_of > self.n


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How to choose the one token that follows a row of a step.

    The random number of a token depends on (seed, sample_index, position) alone, so batch,
    preemption and failover change no choice.
    """

    params: SamplingParams
    position: int  # of the token to be chosen, in the whole sequence
    sample_index: int = 0
    banned: tuple[int, ...] = ()  # cannot be chosen now (end of sequence before min_tokens)
    prompt: Sequence[int] = ()  # for penalties; empty when there are none
    output: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities at one position, before temperature and filters, as
    OpenAI and vLLM report them.
    """

    logprob: float  # of the token that is there
    rank: int  # of that token, 1 for the most probable
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token, with its log-probabilities when `params.scored`."""

    token: int
    logprobs: TokenLogprobs | None = None

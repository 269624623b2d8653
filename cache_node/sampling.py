"""How a request wants its tokens chosen: plain data, shared by the scheduler, the sampler and the
service.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The sampling part of one request. The names and defaults are vLLM's."""

    max_tokens: int = 16
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps the whole vocabulary
    top_p: float = 1.0  # (0, 1]
    min_p: float = 0.0  # [0, 1], relative to the most probable token
    seed: int = 0  # 64 bits; the router picks one when the client sent none
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0  # end-of-sequence and stop tokens cannot be chosen before so many

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """How to choose the one token that follows a row of a step.

    The random number of a token depends on (seed, sample_index, position) alone, so batch,
    preemption and failover change no choice.
    """

    params: SamplingParams
    position: int  # of the token to be chosen, in the whole sequence
    sample_index: int = 0
    banned: tuple[
        int, ...
    ] = ()  # token ids that cannot be chosen now (end of sequence before min_tokens)

"""What the engine's thread hands to the event loop after each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cache_node.limits import Counters
from cache_node.sampling import TokenLogprobs
from cache_node.sequence import FinishReason, Request
from prefix_index.events import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """News of one sample: tokens with their text, and its end."""

    request_id: str
    sample: int = 0
    tokens: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[TokenLogprobs] = ()  # one a token, when they are reported
    finish_reason: FinishReason | None = None
    stop_reason: str = ""  # the stop string that ended it


@dataclass(frozen=True, slots=True)
class Ended:
    """The last news of a request: the account of it, or what went wrong on the device."""

    request: Request
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The node's load at the end of a step, see NodeLoad in cache_node.proto."""

    committed_blocks: int
    growth_share: float
    held_blocks: int
    free_blocks: int
    evictable_blocks: int
    cpu_held_blocks: int
    cpu_cached_blocks: int
    cpu_free_blocks: int
    offloaded_blocks: int  # into the CPU pool, since the start
    loaded_blocks: int  # out of it
    running: int
    waiting: int
    queued_prefill_tokens: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    steps: int
    counters: Counters
    last_dispatch: Mapping[str, int]  # by router


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    deltas: Sequence[Delta]
    ended: Sequence[Ended]
    events: Sequence[Event]
    load: Load

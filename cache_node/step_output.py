"""What the engine's thread hands to the event loop after each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cache_node.sequence import Sequence as Sample
from prefix_index.events import Event


@dataclass(frozen=True, slots=True)
class Delta:
    """News of one request: a token and its text, the end, or a failure."""

    request_id: str
    token: int | None = None
    text: str = ""
    ended: Sample | None = None  # set at the end, with all that is to be told of it
    stop_reason: str = ""  # the stop string that ended it
    error: str | None = None  # the device failed; nothing follows


@dataclass(frozen=True, slots=True)
class Load:
    """The node's load at the end of a step, see NodeLoad in cache_node.proto."""

    held_blocks: int
    free_blocks: int
    evictable_blocks: int
    running: int
    waiting: int
    queued_prefill_tokens: int
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    steps: int
    steps_without_progress: int
    preemptions: int
    queried_tokens: int
    hit_tokens: int
    last_dispatch: Mapping[str, int]  # by router


@dataclass(frozen=True, slots=True)
class StepOutput:
    deltas: Sequence[Delta]
    events: Sequence[Event]
    load: Load

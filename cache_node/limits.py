"""What the scheduler must keep to, and what it counts."""

from dataclasses import dataclass

from cache_node.sequence import FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_num_seqs: int  # samples that run at once
    max_num_batched_tokens: int  # tokens in one step, at least max_num_seqs: every decode has room
    look_ahead: int = 8  # waiting sequences that are tried when the first does not fit
    max_overtakes: int = 16  # by later ones, then nobody passes it any more
    prefix_wait: float = 10.0  # seconds that one waits at most for another to compute its prefix


@dataclass(slots=True)
class Counters:
    """Since the start of the node."""

    preempted_by_swap: int = 0
    preempted_by_recompute: int = 0
    preempted_for_priority: int = 0  # those of them that gave way to a more important request
    steps_without_progress: int = 0
    queried_tokens: int = 0  # prompt tokens looked up in the cache, once a request
    hit_tokens: int = 0  # those of them found in the KV pool
    loaded_tokens: int = 0  # those of them loaded from the CPU pool
    failed_loads: int = 0
    output_tokens: int = 0  # generated, all samples
    overtakes: int = 0  # admissions past a request that did not fit
    prefix_waits: int = 0  # requests that waited for another to compute their prefix
    finished_stop: int = 0  # samples, by what ended them
    finished_length: int = 0
    finished_abort: int = 0

    def finished(self, reason: FinishReason) -> None:
        field = f"finished_{reason.name.lower()}"
        setattr(self, field, getattr(self, field) + 1)

    @property
    def preemptions(self) -> int:
        return self.preempted_by_swap + self.preempted_by_recompute

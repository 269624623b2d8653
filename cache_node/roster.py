"""Where each live sequence stands."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from cache_node.leaders import Leaders
from cache_node.sequence import Request, Sequence, State
from cache_node.waiting_queue import WaitingQueue


@dataclass(slots=True)
class Roster:
    """A live sequence is in exactly one of the three lists, the one that its state names."""

    waiting: WaitingQueue = field(default_factory=WaitingQueue)
    loading: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)  # in order of admission
    leaders: Leaders = field(default_factory=Leaders)
    requests: dict[str, Request] = field(default_factory=dict)

    @property
    def admitted(self) -> list[Sequence]:
        """Those that hold KV blocks."""
        return [*self.running, *self.loading]

    @property
    def queued_prefill_tokens(self) -> int:
        """Prompt tokens that are not computed yet."""
        return self.waiting.uncomputed_prompt + sum(s.uncomputed_prompt for s in self.admitted)

    def enter(self, request: Request) -> None:
        self.requests[request.id] = request
        for sequence in request.live:
            self.waiting.push(sequence)

    def load(self, sequence: Sequence) -> None:
        sequence.state = State.LOADING
        self.loading.append(sequence)

    def run(self, sequence: Sequence, block_size: int) -> None:
        """It runs, and computes for others too what it has to compute."""
        sequence.state, sequence.waits_since, sequence.overtaken = State.RUNNING, None, 0
        self.running.append(sequence)
        if sequence.request.use_cache:
            contents = sequence.keys.extend_to(sequence.tokens, len(sequence.tokens) // block_size)
            self.leaders.lead(sequence, contents[sequence.num_published :])

    def withdraw(self, sequence: Sequence) -> None:
        """Takes it out of the list that it is in."""
        self.leaders.leave(sequence)
        if sequence.state is State.RUNNING:
            self.running.remove(sequence)
        elif sequence.state is State.LOADING:
            self.loading.remove(sequence)
        else:
            self.waiting.remove(sequence)

    def requeue(self, sequence: Sequence) -> None:
        """It waits again, with what is swapped and without any KV block."""
        sequence.state = State.PREEMPTED
        if not sequence.swapped and sequence.scores_prompt:
            sequence.request.prompt_logprobs.clear()  # the prompt is computed again from the start
        self.waiting.push(sequence)

    def violations(self) -> list[str]:
        waiting, admitted = list(self.waiting), self.admitted
        live = {seq for request in self.requests.values() for seq in request.live}
        checks = {
            "a waiting sequence holds KV blocks": any(seq.block_table for seq in waiting),
            "live sequences are not those that run, load or wait": live != {*admitted, *waiting},
            "a sequence stands in two lists": len(live) != len(waiting) + len(admitted),
            "count of waiting prompt tokens is wrong": self.waiting.uncomputed_prompt
            != sum(seq.uncomputed_prompt for seq in waiting),
            "count of waiting tokens is wrong": (self.waiting.tokens, self.waiting.growth)
            != (sum(len(seq.tokens) for seq in waiting), sum(seq.growth for seq in waiting)),
        }
        return [violation for violation, broken in checks.items() if broken]

    def __iter__(self) -> Iterator[Sequence]:
        return iter([*self.waiting, *self.admitted])

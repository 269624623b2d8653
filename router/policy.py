"""What a policy is: which node a request goes to. Plain Python: a simulator runs the same classes.

Costs are in prompt tokens that wait to be prefilled, so that they add up and an operator can read
them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class Candidate(NamedTuple):
    """A node that can be chosen, as the router sees it now. Cached tokens are of this prompt.

    `speculative_tokens` of it follow those that are cached: requests that were sent there a moment
    ago will have computed them before this one.
    """

    node: str
    cached_gpu_tokens: int = 0
    cached_cpu_tokens: int = 0
    speculative_tokens: int = 0
    queued_prefill_tokens: int = 0
    active_blocks: int = 0
    requests: int = 0  # running and waiting
    prefill_speed: float = 0.0  # tokens a second; 0 until known

    @property
    def expected_tokens(self) -> int:
        """What the node will not have to compute."""
        return self.cached_gpu_tokens + self.cached_cpu_tokens + self.speculative_tokens

    def holding(self, gpu_tokens: int, cpu_tokens: int, speculative_tokens: int) -> "Candidate":
        """The same node for a prompt of which it has so many tokens."""
        return Candidate(
            self.node,
            gpu_tokens,
            cpu_tokens,
            speculative_tokens,
            self.queued_prefill_tokens,
            self.active_blocks,
            self.requests,
            self.prefill_speed,
        )


class Cost(NamedTuple):
    """Of one request on one node, lower is better: the sum of its parts."""

    total: float
    prefill: float = 0.0  # what the prompt lacks there, weighted
    queue: float = 0.0  # what is prefilled before it
    decode: float = 0.0  # what running requests slow it down


class Choice(NamedTuple):
    """`kind` is one of a few words, for a metric; `reason` is for people. `costs` makes the costs
    by node name when somebody wants to see them; a policy that does not weigh has none.
    """

    candidate: Candidate
    kind: str
    reason: str
    costs: Callable[[], Mapping[str, Cost]] = dict


class Policy(Protocol):
    """Chooses among at least one candidate, in the order of the fleet's configuration. Reserves
    nothing.
    """

    name: str
    needs_all: bool  # of a large fleet, too: else a part of it is weighed

    def choose(
        self, prompt_tokens: int, candidates: Sequence[Candidate], session: str = ""
    ) -> Choice:
        """`session` is what the client calls requests that belong together; empty: nothing."""
        ...

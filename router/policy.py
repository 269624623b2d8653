"""Which node a request goes to. Plain Python: a simulator runs the same classes.

All costs are in prompt tokens to prefill, so that they add up and an operator can read them.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CPU_CREDIT = 0.75
"""Share of a token's prefill that is saved when its KV comes from the node's swap space: it is
copied, not computed.
"""

ACTIVE_WEIGHT = 0.5
"""Cost of a token that running requests hold, in tokens to prefill: each step reads it once."""

TIE = 0.05
"""Nodes within this share of the lowest cost, and a token, are as good: several routers must not
herd onto one.
"""

TTFT_FACTOR, TTFT_SLACK = 3.0, 1.0
"""Affinity gives way when the first token would come later than so many times the best node's, and
so many seconds.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node that can be chosen, as the router sees it now. Cached tokens are of this prompt."""

    node: str
    cached_gpu_tokens: int = 0
    cached_cpu_tokens: int = 0
    queued_prefill_tokens: int = 0
    active_blocks: int = 0
    requests: int = 0  # running and waiting
    prefill_speed: float = 0.0  # tokens a second; 0 until known

    @property
    def cached_tokens(self) -> int:
        return self.cached_gpu_tokens + self.cached_cpu_tokens


@dataclass(frozen=True, slots=True)
class Choice:
    """`kind` is one of a few words, for a metric; `reason` is for people. Costs are per node name,
    lower is better.
    """

    candidate: Candidate
    kind: str
    reason: str
    costs: dict[str, float]


class Policy(Protocol):
    """Chooses among at least one candidate, in the order of the fleet's configuration. Reserves
    nothing.
    """

    name: str

    def choose(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> Choice: ...


class PrefixAware:
    """The node where the prompt is computed soonest: what it has cached against what it already has
    to do.
    """

    name = "prefix-aware"

    def __init__(self, block_size: int, rng: random.Random) -> None:
        self._block_size = block_size
        self._rng = rng

    def choose(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> Choice:
        costs = {each.node: self._cost(prompt_tokens, each) for each in candidates}
        in_time = _without_late(prompt_tokens, candidates)
        best = min(costs[each.node] for each in in_time)
        near = [each for each in in_time if costs[each.node] <= best * (1 + TIE) + 1]
        chosen = self._rng.choice(near)
        kind, reason = _explain(prompt_tokens, chosen, candidates)
        return Choice(chosen, kind, reason, costs)

    def _cost(self, prompt_tokens: int, node: Candidate) -> float:
        active_tokens = node.active_blocks * self._block_size
        return (
            node.queued_prefill_tokens
            + _to_prefill(prompt_tokens, node)
            + ACTIVE_WEIGHT * active_tokens
        )


def _to_prefill(prompt_tokens: int, node: Candidate) -> float:
    return prompt_tokens - node.cached_gpu_tokens - CPU_CREDIT * node.cached_cpu_tokens


def _without_late(prompt_tokens: int, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates whose predicted time to the first token is not much worse than the best; all
    while unknown.
    """
    if not all(each.prefill_speed > 0 for each in candidates):
        return candidates
    ttft = {
        each.node: (each.queued_prefill_tokens + _to_prefill(prompt_tokens, each))
        / each.prefill_speed
        for each in candidates
    }
    limit = min(ttft.values()) * TTFT_FACTOR + TTFT_SLACK
    return [each for each in candidates if ttft[each.node] <= limit]


def _explain(
    prompt_tokens: int, chosen: Candidate, candidates: Sequence[Candidate]
) -> tuple[str, str]:
    holder = max(candidates, key=lambda each: each.cached_tokens)
    share = f"{chosen.cached_tokens} of {prompt_tokens} tokens"
    if chosen.cached_tokens and chosen.cached_tokens == holder.cached_tokens:
        return "longest-prefix", f"longest prefix: {share}"
    if chosen.cached_tokens:
        return (
            "shorter-prefix",
            f"prefix of {share}; {holder.node} has {holder.cached_tokens} but is busier",
        )
    least = f"least loaded of {len(candidates)}" if len(candidates) > 1 else "only node"
    if holder.cached_tokens:
        held = f"{holder.cached_tokens} of {prompt_tokens} tokens"
        return "load", f"{least}; {holder.node} holds {held} but is busier"
    return "no-prefix", f"{least}; no node holds the prefix"


class LeastLoaded:
    """The node with the fewest requests."""

    name = "least-loaded"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> Choice:  # noqa: ARG002
        least = min(each.requests for each in candidates)
        chosen = self._rng.choice([each for each in candidates if each.requests == least])
        reason = f"least loaded of {len(candidates)}: {least} requests"
        return Choice(chosen, "load", reason, {each.node: each.requests for each in candidates})


class RoundRobin:
    """One after the other."""

    name = "round-robin"

    def __init__(self) -> None:
        self._turn = 0

    def choose(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> Choice:  # noqa: ARG002
        chosen = candidates[self._turn % len(candidates)]
        self._turn += 1
        return Choice(chosen, "round-robin", "round robin", {})


class RandomChoice:
    """Any."""

    name = "random"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def choose(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> Choice:  # noqa: ARG002
        return Choice(self._rng.choice(candidates), "random", "random choice", {})


def make_policy(name: str, block_size: int, rng: random.Random) -> Policy:
    """The policy called `name`; ValueError for another name. `block_size` is in tokens."""
    match name:
        case "prefix-aware":
            return PrefixAware(block_size, rng)
        case "least-loaded":
            return LeastLoaded(rng)
        case "round-robin":
            return RoundRobin()
        case "random":
            return RandomChoice(rng)
    raise ValueError(f"policy: unknown name {name!r}")

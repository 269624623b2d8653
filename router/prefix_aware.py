"""The default policy: what a node has cached against what it already has to do."""

import random
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from router.policy import Candidate, Choice, Cost

CPU_CREDIT = 0.75
"""Share of a token's prefill that is saved when its KV comes from the node's swap space: it is
copied, not computed.
"""

PREFILL_WEIGHT = 6.0
"""Cost of a token that a prompt lacks, in tokens that wait before it: to compute it also delays
what comes later, and takes the place of something cached. See docs/benchmarks/routing.md.
"""

ACTIVE_WEIGHT = 0.3
"""Cost of a token that running requests hold, in the same: each step reads it once."""

TIE = 0.05
"""Nodes within this share of the lowest cost, and a token, are as good: several routers must not
herd onto one.
"""

TTFT_FACTOR, TTFT_SLACK = 3.0, 1.0
"""Affinity gives way when the first token would come later than so many times the best node's, and
so many seconds.
"""

_SPEED = attrgetter("prefill_speed")


class PrefixAware:
    """The node where the prompt is computed soonest."""

    name = "prefix-aware"
    needs_all = False

    def __init__(self, block_size: int, rng: random.Random) -> None:
        self._block_size = block_size
        self._rng = rng

    def choose(
        self,
        prompt_tokens: int,
        candidates: Sequence[Candidate],
        session: str = "",  # noqa: ARG002
    ) -> Choice:
        in_time = _without_late(prompt_tokens, candidates)
        costs = self._sums(prompt_tokens, in_time)
        enough = min(costs) * (1 + TIE) + 1
        near = [each for each, cost in zip(in_time, costs, strict=True) if cost <= enough]
        chosen = near[0] if len(near) == 1 else self._rng.choice(near)
        kind, reason = _explain(prompt_tokens, chosen, candidates)
        return Choice(chosen, kind, reason, partial(self._costs, prompt_tokens, candidates))

    def _sums(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> list[float]:
        """The costs: `_parts` of each, added up. Without calls, as there may be many."""
        size = self._block_size
        return [
            PREFILL_WEIGHT * (prompt_tokens - (gpu + ahead + CPU_CREDIT * cpu))
            + queued
            + ACTIVE_WEIGHT * blocks * size
            for _, gpu, cpu, ahead, queued, blocks, _, _ in candidates
        ]

    def _parts(self, prompt_tokens: int, node: Candidate) -> tuple[float, float, float]:
        """Of the cost: prefill, queue, decode."""
        prefill = PREFILL_WEIGHT * to_prefill(prompt_tokens, node)
        decode = ACTIVE_WEIGHT * node.active_blocks * self._block_size
        return prefill, node.queued_prefill_tokens, decode

    def _costs(self, prompt_tokens: int, candidates: Sequence[Candidate]) -> dict[str, Cost]:
        parts = {each.node: self._parts(prompt_tokens, each) for each in candidates}
        return {node: Cost(sum(each), *each) for node, each in parts.items()}


def to_prefill(prompt_tokens: int, node: Candidate) -> float:
    """What the prompt lacks there, cached tokens credited by tier."""
    saved = node.cached_gpu_tokens + node.speculative_tokens + CPU_CREDIT * node.cached_cpu_tokens
    return prompt_tokens - saved


def predicted_ttft(prompt_tokens: int, node: Candidate) -> float | None:
    """Seconds to the first token, None while the node's speed is unknown."""
    if node.prefill_speed <= 0:
        return None
    return (node.queued_prefill_tokens + to_prefill(prompt_tokens, node)) / node.prefill_speed


def _without_late(prompt_tokens: int, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """The candidates whose predicted time to the first token is not much worse than the best; all
    while unknown.
    """
    if min(map(_SPEED, candidates)) <= 0:
        return candidates
    times = [  # `predicted_ttft` of each
        (queued + (prompt_tokens - (gpu + ahead + CPU_CREDIT * cpu))) / speed
        for _, gpu, cpu, ahead, queued, _, _, speed in candidates
    ]
    limit = min(times) * TTFT_FACTOR + TTFT_SLACK
    if max(times) <= limit:
        return candidates
    return [each for each, time in zip(candidates, times, strict=True) if time <= limit]


def _explain(
    prompt_tokens: int, chosen: Candidate, candidates: Sequence[Candidate]
) -> tuple[str, str]:
    expected = [gpu + cpu + ahead for _, gpu, cpu, ahead, _, _, _, _ in candidates]
    own, most = chosen.expected_tokens, max(expected)
    share = f"{own} of {prompt_tokens} tokens"
    if own and own == most:
        return "longest-prefix", f"longest prefix: {share}"
    holder = candidates[expected.index(most)].node
    if own:
        return "shorter-prefix", f"prefix of {share}; {holder} has {most} but is busier"
    least = f"least loaded of {len(candidates)}" if len(candidates) > 1 else "only node"
    if most:
        held = f"{most} of {prompt_tokens} tokens"
        return "load", f"{least}; {holder} holds {held} but is busier"
    return "no-prefix", f"{least}; no node holds the prefix"

"""Where a prompt goes: what is known of the nodes, the policy's choice, and the reservation."""

import random
import time
from collections.abc import Callable, Collection, Sequence
from heapq import nlargest
from typing import NamedTuple

from kvmesh.errors import unavailable
from kvmesh.v1 import generate_pb2 as pb
from prefix_index.mirror import Match
from router.breaker import BreakerState
from router.eligibility import Eligibility
from router.fleet import Model
from router.index import Index
from router.ledger import Ledger, Reservation
from router.node import Health, Node
from router.policies import make_policy
from router.policy import Candidate, Choice, Cost, Policy
from router.prefix_aware import predicted_ttft
from router.prompt import Prompt
from router.recent_prompts import RecentPrompts, Sent
from router.registry import Registry
from router.request_size import RequestSize, blocks_of
from router.watermark import Watermark

NOTHING, UNSENT, FREE = Match(0, 0), Sent(0, 0), Cost(0.0)

MOST = 64
"""Nodes with the longest part of a prompt, and others drawn from the fleet, that are weighed. The
least busy of so many is nearly the least busy of all (Mitzenmacher, The Power of Two Choices in
Randomized Load Balancing, 2001). Between 2,000 nodes a decision takes 2.3 ms of CPU time when all
are weighed, 0.2 ms so.
"""


class Held(NamedTuple):
    """What is known of a prompt's blocks, by node name."""

    cached: dict[str, Match]
    sent: dict[str, Sent]

    def longest(self) -> list[str]:
        """Names of the nodes that have most of it, MOST at most."""
        blocks = {name: sent.blocks for name, sent in self.sent.items()}
        for name, (gpu, cpu) in self.cached.items():
            blocks[name] = max(gpu + cpu, blocks.get(name, 0))
        return nlargest(MOST, blocks, key=blocks.__getitem__)


class Placed(NamedTuple):
    """A node with a reservation on it. Whoever holds this releases the reservation."""

    node: Node
    choice: Choice
    candidates: list[Candidate]
    reservation: Reservation


class Placement:
    """Chooses and reserves without an await in between: on the event loop that is atomic."""

    def __init__(
        self,
        registry: Registry,
        eligibility: Eligibility,
        index: Index,
        ledger: Ledger,
        watermark: Watermark,
        policy: str,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._eligibility = eligibility
        self._index = index
        self._ledger = ledger
        self._watermark = watermark
        self.policy = policy
        self._rng = rng
        self._recent = RecentPrompts(clock)
        self._chooser: Policy | None = None

    def place(
        self,
        request_id: str,
        prompt: Prompt,
        model: Model,
        attempt: int,
        size: RequestSize,
        tried: Collection[str] = (),
    ) -> Placed:
        """On a node with room, while there is one. Raises UNAVAILABLE when none is up, those at an
        address in `tried` apart.
        """
        held = self._held(prompt)
        nodes = self._some_with_room(model, size, held, tried) or self._all_with_room(size, tried)
        candidates = self._candidates(held, model, nodes)
        choice = self.choose(prompt, model, candidates)
        node = nodes[candidates.index(choice.candidate)]
        reservation = self._ledger.reserve(
            request_id,
            attempt,
            node.name,
            prefill_tokens=prompt.count - choice.candidate.expected_tokens,
            blocks=blocks_of(prompt.count, model.block_size),
            committed=size.blocks(node.load.growth_share),
            samples=size.samples,
        )
        self._recent.note(node.name, node.epoch, prompt.keys)
        return Placed(node, choice, candidates, reservation)

    def _some_with_room(
        self, model: Model, size: RequestSize, held: Held, tried: Collection[str]
    ) -> list[Node]:
        """Of a fleet too large to weigh each node: those with most of the prompt, and some others.
        None of a small fleet, or if the policy has to see all.
        """
        up = self._registry.up
        if len(up) <= 2 * MOST or self._chooser_for(model).needs_all:
            return []
        some = self._registry.up_named(held.longest())
        holders = set(some)
        some += [node for node in self._rng.sample(up, MOST) if node not in holders]
        return self._watermark.with_room(self._eligibility.of(_without(tried, some)), size)

    def _all_with_room(self, size: RequestSize, tried: Collection[str]) -> list[Node]:
        """Or all that may get requests, if none has room."""
        nodes = _without(tried, self._registry.up)
        eligible = self._eligibility.of(nodes)
        if nodes and not eligible:
            raise unavailable("the cache nodes that are up have failed, they rest for a while")
        return self._watermark.with_room(eligible, size) or eligible

    def refused(self, prompt: Prompt, placed: Placed) -> None:
        """The node did not take it: nothing of the prompt is going to be cached there."""
        self._recent.withdraw(placed.node.name, prompt.keys)

    def addresses(self, names: Collection[str]) -> set[str]:
        """Of the nodes with these names."""
        return {node.address for node in self._registry.nodes if node.name in names}

    def choose(self, prompt: Prompt, model: Model, candidates: list[Candidate]) -> Choice:
        """What the policy says. Raises UNAVAILABLE when there is nothing to choose from."""
        if not candidates:
            raise unavailable("no cache node is up")
        return self._chooser_for(model).choose(prompt.count, candidates, prompt.session)

    def _chooser_for(self, model: Model) -> Policy:
        if self._chooser is None:
            self._chooser = make_policy(self.policy, model.block_size, self._rng)
        return self._chooser

    def candidates(self, prompt: Prompt, model: Model, nodes: Collection[Node]) -> list[Candidate]:
        """The nodes as the policy sees them, in the same order."""
        return self._candidates(self._held(prompt), model, nodes)

    def _held(self, prompt: Prompt) -> Held:
        return Held(self._index.match(prompt.keys), self._recent.match(prompt.keys))

    def _candidates(self, held: Held, model: Model, nodes: Collection[Node]) -> list[Candidate]:
        cached, sent = held
        found = [standing.candidate for standing in self._ledger.standings(nodes)]
        if not cached and not sent:
            return found
        size = model.block_size
        for place, node in enumerate(nodes):
            name = node.name
            if name in cached or name in sent:
                gpu_blocks, cpu_blocks = cached.get(name, NOTHING)
                epoch, sent_blocks = sent.get(name, UNSENT)
                ahead = sent_blocks - gpu_blocks - cpu_blocks if epoch == node.epoch else 0
                found[place] = found[place].holding(
                    gpu_blocks * size, cpu_blocks * size, max(0, ahead) * size
                )
        return found

    def report(self, request: pb.GenerateRequest, prompt: Prompt, choice: Choice) -> pb.RouteReport:
        """The choice as the client is told of it; who dispatches adds attempt and times."""
        return pb.RouteReport(
            request_id=request.request_id,
            node=choice.candidate.node,
            policy=self.policy,
            reason=choice.reason,
            prompt_tokens=prompt.count,
            predicted_cached_tokens=choice.candidate.expected_tokens,
            tokenize_us=prompt.tokenize_us,
            seed=request.sampling.seed,
        )

    def explain(
        self, prompt: Prompt, choice: Choice, candidates: list[Candidate]
    ) -> list[pb.RouteCandidate]:
        """All nodes of the fleet, cheapest first, then those that could not be chosen with the
        reason.
        """
        costs = choice.costs()
        ranked = sorted(candidates, key=lambda each: costs.get(each.node, FREE))
        known = {each.node for each in candidates}
        left_out = [node for node in self._registry.nodes if node.name not in known]
        considered = [_candidate(each, costs.get(each.node, FREE), prompt.count) for each in ranked]
        return considered + [_excluded(each) for each in left_out]


def _without(tried: Collection[str], nodes: Sequence[Node]) -> Sequence[Node]:
    """Those at other addresses."""
    return [node for node in nodes if node.address not in tried] if tried else nodes


def _candidate(candidate: Candidate, cost: Cost, prompt_tokens: int) -> pb.RouteCandidate:
    return pb.RouteCandidate(
        node=candidate.node,
        cost=cost.total,
        cached=pb.CachedTokens(gpu=candidate.cached_gpu_tokens, cpu=candidate.cached_cpu_tokens),
        queued_prefill_tokens=candidate.queued_prefill_tokens,
        active_blocks=candidate.active_blocks,
        speculative_tokens=candidate.speculative_tokens,
        prefill_cost=cost.prefill,
        queue_cost=cost.queue,
        decode_cost=cost.decode,
        predicted_ttft_us=int((predicted_ttft(prompt_tokens, candidate) or 0.0) * 1e6),
    )


def _excluded(node: Node) -> pb.RouteCandidate:
    health = Health.Name(node.health).removeprefix("NODE_HEALTH_").lower()
    reason = health
    if node.health == Health.NODE_HEALTH_UP:
        resting = node.breaker.state is not BreakerState.CLOSED
        reason = f"breaker {node.breaker.state.value}" if resting else "refused this request"
    return pb.RouteCandidate(
        node=node.name, excluded=f"{reason}: {node.detail}" if node.detail else reason
    )

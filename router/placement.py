"""Where a prompt goes: what is known of the nodes, the policy's choice, and the reservation."""

import random
from collections.abc import Collection
from dataclasses import dataclass

from kvmesh.errors import unavailable
from kvmesh.v1 import generate_pb2 as pb
from router.admission import blocks_of
from router.fleet import Model
from router.index import Index
from router.ledger import Ledger, Reservation
from router.node import Health, Node
from router.policy import Candidate, Choice, Policy, make_policy
from router.prompt import Prompt
from router.registry import Registry


@dataclass(frozen=True, slots=True)
class Placed:
    """A node with a reservation on it. Whoever holds this releases the reservation."""

    node: Node
    choice: Choice
    candidates: list[Candidate]
    reservation: Reservation


class Placement:
    """Chooses and reserves without an await in between: on the event loop that is atomic."""

    def __init__(
        self, registry: Registry, index: Index, ledger: Ledger, policy: str, rng: random.Random
    ) -> None:
        self._registry = registry
        self._index = index
        self._ledger = ledger
        self.policy = policy
        self._rng = rng
        self._chooser: Policy | None = None

    def place(
        self,
        request_id: str,
        prompt: Prompt,
        model: Model,
        attempt: int,
        tried: Collection[str] = (),
    ) -> Placed:
        """Raises UNAVAILABLE when no node is up, those with an address in `tried` apart."""
        nodes = [node for node in self._registry.up if node.address not in tried]
        candidates = self.candidates(prompt, model, nodes)
        choice = self.choose(prompt, model, candidates)
        node = next(node for node in nodes if node.name == choice.candidate.node)
        reservation = self._ledger.reserve(
            request_id,
            attempt,
            node.name,
            prefill_tokens=prompt.count - choice.candidate.cached_tokens,
            blocks=blocks_of(prompt.count, model.block_size),
        )
        return Placed(node, choice, candidates, reservation)

    def addresses(self, names: Collection[str]) -> set[str]:
        """Of the nodes with these names."""
        return {node.address for node in self._registry.nodes if node.name in names}

    def choose(self, prompt: Prompt, model: Model, candidates: list[Candidate]) -> Choice:
        """What the policy says. Raises UNAVAILABLE when there is nothing to choose from."""
        if not candidates:
            raise unavailable("no cache node is up")
        if self._chooser is None:
            self._chooser = make_policy(self.policy, model.block_size, self._rng)
        return self._chooser.choose(prompt.count, candidates)

    def candidates(self, prompt: Prompt, model: Model, nodes: Collection[Node]) -> list[Candidate]:
        """The nodes as the policy sees them, in the same order."""
        matches = self._index.match(prompt.keys)
        found = []
        for node in nodes:
            change = self._ledger.since_report(node.name)
            match = matches.get(node.name)
            found.append(
                Candidate(
                    node.name,
                    match.gpu_blocks * model.block_size if match else 0,
                    match.cpu_blocks * model.block_size if match else 0,
                    max(0, node.load.queued_prefill_tokens + change.prefill_tokens),
                    max(0, node.held_blocks + change.blocks),
                    max(0, node.load.running + node.load.waiting + change.requests),
                    node.load.prefill_tokens_per_second,
                )
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
            predicted_cached_tokens=choice.candidate.cached_tokens,
            tokenize_us=prompt.tokenize_us,
            seed=request.sampling.seed,
        )

    def explain(self, choice: Choice, candidates: list[Candidate]) -> list[pb.RouteCandidate]:
        """All nodes of the fleet, cheapest first, then those that could not be chosen with the
        reason.
        """
        costs = choice.costs
        ranked = sorted(candidates, key=lambda each: costs.get(each.node, 0.0))
        known = {each.node for each in candidates}
        left_out = [node for node in self._registry.nodes if node.name not in known]
        return [_candidate(each, costs) for each in ranked] + [_excluded(each) for each in left_out]


def _candidate(candidate: Candidate, costs: dict[str, float]) -> pb.RouteCandidate:
    return pb.RouteCandidate(
        node=candidate.node,
        cost=costs.get(candidate.node, 0.0),
        cached=pb.CachedTokens(gpu=candidate.cached_gpu_tokens, cpu=candidate.cached_cpu_tokens),
        queued_prefill_tokens=candidate.queued_prefill_tokens,
        active_blocks=candidate.active_blocks,
    )


def _excluded(node: Node) -> pb.RouteCandidate:
    health = Health.Name(node.health).removeprefix("NODE_HEALTH_").lower()
    reason = "refused this request" if node.health == Health.NODE_HEALTH_UP else health
    return pb.RouteCandidate(
        node=node.name, excluded=f"{reason}: {node.detail}" if node.detail else reason
    )

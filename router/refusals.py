"""What the nodes said that did not take a request, and what its client is told then."""

from dataclasses import dataclass, field

from kvmesh.errors import Code, RequestError, exhausted, unavailable
from router.admission import FULL_RETRY
from router.node_call import Life, NodeCall, NodeFailed

MOST_LOST = 3
"""Nodes that one request may take with it, if it is the request that does it. A node that is still
the same afterwards, behind a connection that broke, is one however often that happens.
"""


@dataclass(slots=True)
class Refusals:
    """Of one round in which each node is tried at most once."""

    errors: list[RequestError] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    lost: set[Life] = field(default_factory=set)

    def add(self, call: NodeCall, failed: NodeFailed) -> None:
        self.errors.append(failed.error)
        self.tried.add(call.placed.node.address)
        if failed.lost:
            self.lost.add(call.life)

    @property
    def dangerous(self) -> bool:
        """Whether it is not worth another node."""
        return len(self.lost) >= MOST_LOST

    def verdict(self) -> RequestError:
        """Full and gone are never mixed up: a full node is there, so it is worth coming back."""
        full = [each for each in self.errors if each.code == Code.RESOURCE_EXHAUSTED]
        if full:
            retry = min(each.retry_after or FULL_RETRY for each in full)
            return exhausted(f"all nodes are full: {full[-1].message}", retry)
        return unavailable(f"no cache node took the request: {self.errors[-1].message}")

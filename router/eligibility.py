"""Which of the nodes that are up get a new request now. Plain Python, with an injected clock."""

import random
from collections.abc import Callable, Sequence

from router.node import Node

LEAST_SHARE = 0.1
"""Of its turns that a node gets right after its start."""


class Eligibility:
    """Leaves out nodes whose breaker is open, and spares new ones.

    A node that joins a running fleet has an empty cache, no load and a model that has not run yet:
    it would get everything at once. For `slow_start` seconds it is left out at random, less and
    less often. Nodes that start together with the router, or come back as they were, are not new.
    """

    def __init__(self, slow_start: float, clock: Callable[[], float], rng: random.Random) -> None:
        self._slow_start = slow_start
        self._clock = clock
        self._rng = rng
        self._running_since: float | None = None  # the fleet: its first node was there then

    def joined(self, node: Node) -> None:
        """The node is there, in a life that was not known before."""
        now = self._clock()
        if self._running_since is None:
            self._running_since = now
        node.joined = now if now - self._running_since > self._slow_start else None

    def of(self, nodes: Sequence[Node]) -> list[Node]:
        """Those of `nodes` that may get a request; one that is new rather than none."""
        allowed = [node for node in nodes if node.breaker.allows]
        return [
            node for node in allowed if node.joined is None or self._has_its_turn(node, node.joined)
        ] or allowed

    def _has_its_turn(self, node: Node, joined: float) -> bool:
        age = self._clock() - joined
        if age >= self._slow_start:
            node.joined = None
            return True
        return self._rng.random() < max(LEAST_SHARE, age / self._slow_start)

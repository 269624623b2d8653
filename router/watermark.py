"""Which nodes have room for another request."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum

from router.ledger import Ledger
from router.node import Node
from router.request_size import RequestSize


class Wait(Enum):
    """Why a request waits. The values are labels of metrics."""

    SEATS = "seats"  # nodes run as many requests as they do at once
    WATERMARK = "watermark"  # nodes are above the high mark, or not yet below the low one
    BLOCKS = "blocks"  # no node has so many blocks left
    TURN = "turn"  # others are before it


@dataclass(frozen=True, slots=True)
class Marks:
    """Shares of a node's pool: above `high` it takes nothing new until it is at `low` again."""

    low: float
    high: float


class Watermark:
    """Judges by what a node has said is committed, plus this router's dispatches after that: so
    nothing counts twice. A hint: the node decides.

    Every look judges anew, so that a node opens again by itself whenever anybody looks.
    """

    def __init__(self, ledger: Ledger, marks: Marks) -> None:
        self._ledger = ledger
        self._marks = marks
        self._closed: set[str] = set()

    def with_room(self, nodes: Iterable[Node], size: RequestSize) -> list[Node]:
        return [node for node in nodes if self._obstacle(node, size, ()) is None]

    def obstacle(
        self, nodes: Collection[Node], size: RequestSize, on_the_way: Collection[RequestSize] = ()
    ) -> Wait | None:
        """Why none of `nodes` (at least one) has room, None if one has.

        `on_the_way` are requests that may start and have not reached a node yet. Nobody knows which
        they will take, so they count on all.
        """
        obstacles = []
        for node in nodes:
            if (obstacle := self._obstacle(node, size, on_the_way)) is None:
                return None
            obstacles.append(obstacle)
        return max(obstacles, key=_NEAREST.index)

    def committed(self, node: Node) -> int:
        """Blocks of the node that are given away, as far as this router knows."""
        return max(0, node.load.committed_blocks + self._ledger.since_report(node.name).committed)

    def is_closed(self, node: Node) -> bool:
        """Whether it was above the high mark and has not been at the low one since."""
        return self._is_closed(node, self.committed(node))

    def _is_closed(self, node: Node, committed: int) -> bool:
        if committed > self._marks.high * node.num_blocks:
            self._closed.add(node.name)
            return True
        if not self._closed:
            return False  # mostly: asked of each node for each request
        if committed <= self._marks.low * node.num_blocks:
            self._closed.discard(node.name)
        return node.name in self._closed

    def _obstacle(
        self, node: Node, size: RequestSize, on_the_way: Collection[RequestSize]
    ) -> Wait | None:
        load, change = node.load, self._ledger.since_report(node.name)
        committed = max(0, load.committed_blocks + change.committed)
        if self._is_closed(node, committed):
            return Wait.WATERMARK
        seats = max(0, load.running + load.waiting + change.samples)
        if not committed and not seats and not on_the_way:
            return None  # alone it fits, else it would have been refused for good
        samples, needed = size.samples, size.blocks(load.growth_share)
        for each in on_the_way:
            samples += each.samples
            needed += each.blocks(load.growth_share)
        if seats + samples > node.max_num_seqs:
            return Wait.SEATS
        return Wait.BLOCKS if committed + needed > node.num_blocks else None


_NEAREST = (Wait.BLOCKS, Wait.WATERMARK, Wait.SEATS)
"""Obstacles from the farthest to the one that goes first."""

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

    @property
    def marks(self) -> Marks:
        return self._marks

    def with_room(self, nodes: Collection[Node], size: RequestSize) -> list[Node]:
        most, samples, high = size.blocks(), size.samples, self._marks.high
        found = []
        for node, standing in zip(nodes, self._ledger.standings(nodes), strict=True):
            committed, blocks = standing.committed, node.num_blocks
            # Mostly there is room for the longest output, and no more to look at.
            sure = (
                committed + most <= blocks
                and committed <= high * blocks
                and standing.seats + samples <= node.max_num_seqs
                and not self._closed
            )
            if sure or self._obstacle(node, size, ()) is None:
                found.append(node)
        return found

    def obstacle(
        self, nodes: Iterable[Node], size: RequestSize, on_the_way: Collection[RequestSize] = ()
    ) -> Wait | None:
        """Why none of `nodes` has room, None if one has or there are none.

        `on_the_way` are requests that may start and have not reached a node yet. Nobody knows which
        they will take, so they count on all.
        """
        obstacles = []
        for node in nodes:
            if (obstacle := self._obstacle(node, size, on_the_way)) is None:
                return None
            obstacles.append(obstacle)
        return max(obstacles, key=_NEAREST.index, default=None)

    def committed(self, node: Node) -> int:
        """Blocks of the node that are given away, as far as this router knows."""
        return self._ledger.standing(node).committed

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
        standing = self._ledger.standing(node)
        committed, seats, share = standing.committed, standing.seats, standing.growth_share
        if self._is_closed(node, committed):
            return Wait.WATERMARK
        if not committed and not seats and not on_the_way:
            return None  # alone it fits, else it would have been refused for good
        samples, needed = size.samples, size.blocks(share)
        for each in on_the_way:
            samples += each.samples
            needed += each.blocks(share)
        if seats + samples > node.max_num_seqs:
            return Wait.SEATS
        return Wait.BLOCKS if committed + needed > node.num_blocks else None


_NEAREST = (Wait.BLOCKS, Wait.WATERMARK, Wait.SEATS)
"""Obstacles from the farthest to the one that goes first."""

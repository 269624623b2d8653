"""The router's prefix index: one mirror, and the feeds that keep it up to date."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import fleet_pb2
from prefix_index.direct_feed import DirectFeed
from prefix_index.feed import Feed
from prefix_index.mirror import Match, Mirror

if TYPE_CHECKING:
    from prefix_index.redis_feed import RedisFeed


class Index:
    """A hint: which node holds which blocks. Fed by Redis where there is one, else by the nodes'
    state streams.

    The state streams also stand in while Redis is away, and for a node that does not write to it.
    Watchers say when a node lives and when it is gone.
    """

    def __init__(self, redis_url: str | None, redis_group: str, redis_shards: int = 1) -> None:
        self._mirror = Mirror()
        self._direct = DirectFeed(self._mirror)
        self._redis = (
            _redis_feed(redis_url, redis_group, self._mirror, redis_shards) if redis_url else None
        )
        self._feeds: list[Feed] = [self._direct, *([self._redis] if self._redis else [])]

    def wants_events(self, node: str) -> bool:
        """Whether the node's state stream should bring block events now."""
        return self._redis is None or not self._redis.feeds(node)

    async def run(self) -> None:
        """Follows Redis for as long as the router lives; returns at once without it."""
        if self._redis is not None:
            await self._redis.run()

    def opened(self, node: str, epoch: int) -> None:
        """The node lives, in this epoch. Entries of an older one count for nothing from here on."""
        for feed in self._feeds:
            feed.track(node, epoch)

    def closed(self, node: str) -> None:
        """The node is gone, with all its entries."""
        for feed in self._feeds:
            feed.untrack(node)

    def apply(self, node: str, epoch: int, events: pb.BlockEvents) -> bool:
        """Takes in what a state stream brought. False: a gap, the stream must be opened again for a
        snapshot.
        """
        return self._direct.apply(node, epoch, events)

    def confirm(self, node: str) -> None:
        """A state stream brought no event: a sign of life, when it is the one that would."""
        if self.wants_events(node):
            self._mirror.confirm(node)

    def match(self, keys: Sequence[bytes]) -> dict[str, Match]:
        return self._mirror.match(keys) if keys else {}

    def mode(self, node: str) -> fleet_pb2.IndexMode.ValueType:
        return self._mirror.mode(node)

    def lag(self, node: str) -> float | None:
        return self._mirror.lag(node)

    def size(self, node: str) -> int:
        return self._mirror.size(node)


def _redis_feed(url: str, group: str, mirror: Mirror, shards: int) -> "RedisFeed":
    from prefix_index.redis_feed import RedisFeed  # costs 100 ms, and most start without

    return RedisFeed(url, group, mirror, shards)

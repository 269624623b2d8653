"""The mirror's feed from the nodes themselves: the block events of WatchState."""

import structlog

from kvmesh.v1 import cache_node_pb2
from prefix_index.batch import Batch
from prefix_index.mirror import Mirror

log = structlog.get_logger(__name__)


class DirectFeed:
    """A Feed (see feed.py) without a connection of its own: the router's watcher hands it what
    the streams bring.

    async for state in stub.WatchState(request):
        if state.HasField("events") and not feed.apply(node, state.epoch, state.events):
            break                 # open the stream again: it starts with a snapshot
    feed.lost(node)
    """

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror

    @property
    def healthy(self) -> bool:
        return True

    def track(self, node: str, epoch: int) -> None:
        self._mirror.set_epoch(node, epoch)

    def untrack(self, node: str) -> None:
        self._mirror.drop(node)

    def apply(self, node: str, epoch: int, events: cache_node_pb2.BlockEvents) -> bool:
        """Takes the events of one NodeState. False: a gap, open WatchState again for a snapshot."""
        self.track(node, epoch)
        try:
            complete = self._mirror.apply(node, epoch, Batch.from_proto(events))
        except ValueError as error:
            log.error("block_events_malformed", node=node, epoch=epoch, error=str(error))
            self._mirror.mark_stale(node)
            return False
        if not complete:
            log.warning("block_events_gap", node=node, epoch=epoch, base=events.base_sequence)
        return complete

    def lost(self, node: str) -> None:
        """The node's stream broke: what is known of it may be old. Unknown nodes are fine."""
        self._mirror.mark_stale(node)

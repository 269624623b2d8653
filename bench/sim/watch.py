"""What the router's watcher of a node does, without a connection."""

import asyncio

import grpc

from bench.sim.node import SimNode
from kvmesh.v1 import cache_node_pb2
from prefix_index.event_log import Subscription
from router.breaker import Breaker
from router.index import Index
from router.ledger import Ledger
from router.node import Health, Node
from router.registry import Registry
from router.watcher import FIRST_RETRY, LAST_RETRY

UP, DOWN = Health.NODE_HEALTH_UP, Health.NODE_HEALTH_DOWN


class Watch:
    """Follows one node: reports when something has changed, `delay` seconds late. A crash is seen
    at once, as a broken connection is; a restart when the router tries next.
    """

    def __init__(
        self,
        node: SimNode,
        channel: grpc.aio.Channel,
        registry: Registry,
        index: Index,
        ledger: Ledger,
        interval: float,
        delay: float,
    ) -> None:
        """`interval`: seconds between two reports at least."""
        self.node = node
        self._registry, self._index, self._ledger = registry, index, ledger
        self._interval, self._delay = interval, delay
        self._loop = asyncio.get_running_loop()
        self._known = Node(node.name, channel, node.name, breaker=Breaker(self._loop.time))
        registry.nodes.append(self._known)
        self._events: Subscription
        self._reporting = False  # one is under way
        self._next = 0.0  # the time from which on there may be another
        node.on_change = self.changed
        self._join()

    def changed(self) -> None:
        """The node's load or cache has: there will be a report."""
        if not self._reporting:
            self._reporting = True
            self._loop.call_at(max(self._loop.time(), self._next), self._report)

    def fail(self, seconds: float) -> None:
        """The node's process dies, and another is there after so long."""
        self._registry.set_health(self._known, DOWN, "the node is gone")
        self._index.closed(self.node.name)
        self._events.close()
        self.node.fail()
        self._loop.call_later(_noticed(seconds), self._restart)

    def _restart(self) -> None:
        self.node.start()
        self._join()

    def _join(self) -> None:
        node, spec = self.node, self.node.spec
        info = cache_node_pb2.NodeInfo(
            name=node.name,
            epoch=node.epoch,
            num_blocks=spec.num_blocks,
            max_num_seqs=spec.max_num_seqs,
        )
        self._registry.accept(self._known, info)
        self._index.opened(node.name, node.epoch)
        self._events = node.log.subscribe()
        self._send_report()
        self._registry.set_health(self._known, UP)

    def _report(self) -> None:
        self._reporting = False
        if self._known.health == UP:
            self._send_report()

    def _send_report(self) -> None:
        self._next = self._loop.time() + self._interval
        load, batch = self.node.load(), self._events.take()
        events = None if batch is None else batch.to_proto()
        if self._delay:
            self._loop.call_later(self._delay, self._apply, self.node.epoch, load, events)
        else:
            self._apply(self.node.epoch, load, events)

    def _apply(
        self,
        epoch: int,
        load: cache_node_pb2.NodeLoad,
        events: cache_node_pb2.BlockEvents | None,
    ) -> None:
        if epoch != self.node.epoch or self._known.health == DOWN:
            return  # of a life that has ended
        self._known.load = load
        self._ledger.report(self.node.name, load.last_dispatch_sequence)
        if events is not None:
            assert self._index.apply(self.node.name, epoch, events)


def _noticed(seconds: float) -> float:
    """When a router that tries again and again finds a node that is away for so long."""
    retry = FIRST_RETRY
    tried = retry
    while tried < seconds:
        retry = min(2 * retry, LAST_RETRY)
        tried += retry
    return tried

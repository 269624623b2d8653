"""The nodes that this router knows: those of its configuration, then those that were found."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import grpc
import structlog

from kvmesh.tls import open_aio_channel
from kvmesh.v1 import cache_node_pb2 as pb
from router.node import CHANNEL_OPTIONS, Health, Node

log = structlog.get_logger("router")

UP = Health.NODE_HEALTH_UP  # an enum of protobuf takes a microsecond to look up


class _There(NamedTuple):
    """What each request asks for several times: a look at 2,000 nodes takes 26 µs or more."""

    up: list[Node]
    up_named: dict[str, Node]
    largest_pool: int | None


class Registry:
    """Owns the nodes and their channels. Every change of a node's health goes through here and is
    logged once.

    Listeners are called after each, on the event loop.
    """

    def __init__(
        self, addresses: Sequence[str], credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        """`credentials` are for all nodes; None: they talk plain text."""
        self._credentials = credentials
        self.nodes: list[Node] = []
        for address in addresses:
            self.add(address)
        self._listeners: list[Callable[[], None]] = []
        self._on_join: list[Callable[[Node], None]] = []
        self._found: _There | None = None  # until something changes

    def add(self, address: str, certified: str | None = None) -> Node:
        """A node that nothing is known of yet. With TLS its certificate is for the host `certified`
        when that is not the address's.
        """
        override = [("grpc.ssl_target_name_override", certified)] if certified is not None else []
        channel = open_aio_channel(address, self._credentials, [*CHANNEL_OPTIONS, *override])
        node = Node(address, channel, address)
        self.nodes.append(node)
        return node

    async def remove(self, node: Node) -> None:
        """Forgets a node that is away."""
        self.nodes.remove(node)
        self._found = None
        log.info("node_forgotten", node=node.name, address=node.address)
        await node.channel.close()

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def on_join(self, listener: Callable[[Node], None]) -> None:
        """Called with each node that is there in a new life."""
        self._on_join.append(listener)

    @property
    def up(self) -> Sequence[Node]:
        """The nodes that take new requests."""
        return (self._found or self._look()).up

    def up_named(self, names: Iterable[str]) -> list[Node]:
        """Those of `up` with these names, in this order."""
        named = (self._found or self._look()).up_named
        return [named[name] for name in names if name in named]

    @property
    def largest_pool(self) -> int | None:
        """Blocks of the largest node that is there; None if there is none."""
        return (self._found or self._look()).largest_pool

    def _look(self) -> _There:
        up = [node for node in self.nodes if node.health == UP]
        largest = max((node.num_blocks for node in self.nodes if node.accepted), default=None)
        self._found = _There(up, {node.name: node for node in up}, largest)
        return self._found

    def name_taken(self, name: str, by_other_than: Node) -> Node | None:
        """The other node of that name, which ledger and index would take for the same one."""
        gone = (Health.NODE_HEALTH_DOWN, Health.NODE_HEALTH_REFUSED)
        others = (each for each in self.nodes if each is not by_other_than)
        return next(
            (each for each in others if each.name == name and each.health not in gone), None
        )

    def accept(self, node: Node, info: pb.NodeInfo) -> None:
        """What a member of the fleet said of itself: its name is taken from here on. It is UP once
        `set_health` says so.
        """
        if info.epoch != node.epoch:
            node.breaker.reset()
            for listener in self._on_join:
                listener(node)
        node.name, node.num_blocks, node.epoch = info.name, info.num_blocks, info.epoch
        node.max_num_seqs = info.max_num_seqs
        self._found = None
        node.metrics_url = _metrics_url(node.address, info)
        if not node.accepted:
            self.set_health(node, Health.NODE_HEALTH_CONNECTING)

    def set_health(self, node: Node, health: Health.ValueType, detail: str = "") -> None:
        changed = node.health != health
        node.detail = detail
        if not changed:
            return
        node.health, self._found = health, None
        log.info(
            "node",
            node=node.name,
            address=node.address,
            health=Health.Name(health).removeprefix("NODE_HEALTH_"),
            detail=detail,
            epoch=node.epoch,
        )
        for listener in self._listeners:
            listener()

    def pass_time(self, seconds: float) -> None:
        """What runs on the nodes has kept us waiting for so much longer."""
        for node in self.nodes:
            for call in list(node.calls):
                call.wait_longer(seconds)

    async def close(self) -> None:
        for node in self.nodes:
            await node.channel.close()


def _metrics_url(address: str, info: pb.NodeInfo) -> str:
    if not info.metrics_port:
        return ""
    scheme = "https" if info.metrics_tls else "http"
    return f"{scheme}://{address.rpartition(':')[0]}:{info.metrics_port}/metrics"

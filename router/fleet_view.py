"""The nodes as an operator sees them."""

from kvmesh.v1 import fleet_pb2
from router.index import Index
from router.ledger import Ledger
from router.node import Node
from router.rates import Rates
from router.registry import Registry


class FleetView:
    """Reads registry, ledger, index and rates; changes nothing."""

    def __init__(self, registry: Registry, ledger: Ledger, index: Index, rates: Rates) -> None:
        self._registry = registry
        self._ledger = ledger
        self._index = index
        self._rates = rates

    @property
    def serving(self) -> bool:
        """Whether any node takes new requests."""
        return bool(self._registry.up)

    def nodes(self) -> list[fleet_pb2.NodeStatus]:
        """All that the router was told of, in the order of its configuration."""
        return [self._status(node) for node in self._registry.nodes]

    def _status(self, node: Node) -> fleet_pb2.NodeStatus:
        return fleet_pb2.NodeStatus(
            name=node.name,
            address=node.address,
            health=node.health,
            detail=node.detail,
            epoch=node.epoch,
            load=node.load,
            in_flight=self._ledger.in_flight(node.name),
            index_mode=self._index.mode(node.name),
            indexed_blocks=self._index.size(node.name),
            num_blocks=node.num_blocks,
            breaker=node.breaker.state.value,
            rates=self._rates.of(node),
        )

"""What the router knows of its nodes, as gauges that are read off when Prometheus asks."""

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvmesh.v1 import fleet_pb2
from router.breaker import BreakerState
from router.index import Index
from router.node import Health, Node
from router.registry import Registry


class FleetGauges(Collector):
    """Health, breaker and index of each node. Labels are bounded by the router's configuration."""

    def __init__(self, registry: Registry, index: Index) -> None:
        self._registry = registry
        self._index = index

    def collect(self) -> Iterable[Metric]:
        nodes = self._registry.nodes
        return [_infos(nodes), _health(nodes), _breakers(nodes), *self._indexes(nodes)]

    def _indexes(self, nodes: list[Node]) -> list[Metric]:
        blocks = GaugeMetricFamily("kvmesh_router_index_blocks", "Indexed blocks", labels=["node"])
        mode = GaugeMetricFamily(
            "kvmesh_router_index_mode", "1 for the mode the index is in", labels=["node", "mode"]
        )
        lag = GaugeMetricFamily(
            "kvmesh_router_index_lag_seconds",
            "Time since the index held all that the node had told of. A node tells at least every "
            "0.25 s, through Redis every 2 s: less than that is none",
            labels=["node"],
        )
        for node in nodes:
            blocks.add_metric([node.name], self._index.size(node.name))
            if (seconds := self._index.lag(node.name)) is not None:
                lag.add_metric([node.name], seconds)
            word = fleet_pb2.IndexMode.Name(self._index.mode(node.name))
            mode.add_metric([node.name, word.removeprefix("INDEX_MODE_").lower()], 1)
        return [blocks, mode, lag]


def _infos(nodes: list[Node]) -> Metric:
    infos = GaugeMetricFamily(
        "kvmesh_router_node_info",
        "1, with where a node is, and where its own metrics are",
        labels=["node", "address", "metrics"],
    )
    for node in nodes:
        infos.add_metric([node.name, node.address, node.metrics_url], 1)
    return infos


def _health(nodes: list[Node]) -> Metric:
    health = GaugeMetricFamily("kvmesh_router_nodes", "Nodes by health", labels=["health"])
    for word, value in Health.items():
        if value != Health.NODE_HEALTH_UNSPECIFIED:
            count = sum(node.health == value for node in nodes)
            health.add_metric([word.removeprefix("NODE_HEALTH_").lower()], count)
    return health


def _breakers(nodes: list[Node]) -> Metric:
    breakers = GaugeMetricFamily(
        "kvmesh_router_breaker", "1 for the state the breaker is in", labels=["node", "state"]
    )
    for node in nodes:
        for state in BreakerState:
            breakers.add_metric([node.name, state.value], float(node.breaker.state is state))
    return breakers

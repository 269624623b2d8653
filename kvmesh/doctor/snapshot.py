"""A fleet as its metrics show it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvmesh.doctor.readings import Readings

BYTES = {"float32": 4, "bfloat16": 2, "fp8": 1, "int8": 1, "int4": 1}


@dataclass(frozen=True, slots=True)
class Node:
    """A cache node's readings under their meaning."""

    read: Readings
    beside: int = 0  # bytes of KV and weights of other nodes in the same memory

    @property
    def name(self) -> str:
        return self.fact("node") or self.read.address

    def fact(self, name: str) -> str:
        """Of kvmesh_node_info; empty for one that it lacks."""
        return self.read.info("kvmesh_node_info").get(name, "")

    @property
    def on_gpu(self) -> bool:
        return self.fact("device") == "cuda"

    @property
    def host(self) -> str:
        return self.read.address.rpartition(":")[0]

    @property
    def usage(self) -> float:
        """Share of the KV blocks that requests hold."""
        return self.read.total("kvmesh_kv_cache_usage_perc")

    @property
    def blocks(self) -> float:
        return self.read.total("kvmesh_kv_blocks")

    @property
    def committed(self) -> float:
        """Share of the blocks that is given away or waited for; may be above 1."""
        return self.read.total("kvmesh_kv_blocks_committed") / max(1.0, self.blocks)

    @property
    def preemptions(self) -> int:
        """For want of memory: those for a more important request are wanted."""
        wanted = self.read.total("kvmesh_preemptions_for_priority_total")
        return int(self.read.total("kvmesh_num_preemptions_total") - wanted)

    @property
    def waiting(self) -> int:
        return int(self.read.total("kvmesh_num_requests_waiting"))

    @property
    def pool_bytes(self) -> int:
        return int(self.read.total("kvmesh_kv_pool_bytes"))

    @property
    def weight_bytes(self) -> int:
        return int(self.read.total("kvmesh_model_weights_bytes"))

    @property
    def gpu_bytes(self) -> int:
        """Of the whole card; 0 where nobody tells."""
        return int(self.read.total("kvmesh_gpu_memory_total_bytes"))

    @property
    def memory_limit(self) -> int:
        return int(self.read.total("kvmesh_memory_limit_bytes"))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`unread` are addresses that did not answer, each with the reason."""

    routers: Sequence[Readings]
    nodes: Sequence[Node]
    unread: Sequence[str] = ()


def sorted_out(readings: Sequence[Readings], unread: Sequence[str] = ()) -> Snapshot:
    """By what they tell. What is neither router nor node is left out."""
    nodes = [Node(each) for each in readings if each.info("kvmesh_node_info")]
    nodes = [replace(node, beside=_beside(node, nodes)) for node in nodes]
    routers = [each for each in readings if "kvmesh_router_requests_in_flight" in each.samples]
    return Snapshot(routers, sorted(nodes, key=lambda node: node.name), unread)


def _beside(node: Node, nodes: Sequence[Node]) -> int:
    """Those of a GPU have their own share of it."""
    others = [each for each in nodes if each is not node and each.host == node.host]
    return 0 if node.on_gpu else sum(each.pool_bytes + each.weight_bytes for each in others)

"""What the nodes say of themselves while the load runs, from a kvmesh router."""

import asyncio
from typing import NamedTuple

import grpc

from bench.load.config import LoadConfig
from bench.load.grpc_sender import OPTIONS, credentials_of, metadata_of
from bench.load.sender import Clock
from kvmesh.tls import open_aio_channel
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc

PERIOD = 0.5  # seconds
ANSWER = 5.0  # seconds at most


class NodeSample(NamedTuple):
    time: float  # seconds from the start of the load
    node: str
    held: float  # share of the KV blocks that requests hold
    cached: float  # share of those that only the prefix cache holds
    queried_tokens: int  # since the node's start
    hit_tokens: int


class FleetWatch:
    """Samples of all nodes; `missing` says why there are none."""

    def __init__(self, target: str | None, config: LoadConfig) -> None:
        """`target`: gRPC API of a router; None where the server is none."""
        self.samples: list[NodeSample] = []
        self.missing: str | None = None
        if target is None:
            self.missing = "the target is not known to be kvmesh: name its gRPC API with --fleet"
        self._target = target
        self._config = config

    async def watch(self, clock: Clock) -> None:
        """Until it is cancelled, or the router cannot say."""
        if self._target is None:
            return
        channel = open_aio_channel(self._target, credentials_of(self._config), OPTIONS)
        async with channel:
            stub: fleet_pb2_grpc.FleetAsyncStub = fleet_pb2_grpc.FleetStub(channel)
            try:
                while True:
                    await self._sample(stub, clock)
                    await asyncio.sleep(PERIOD)
            except grpc.aio.AioRpcError as error:
                self.missing = f"{self._target} no longer told of its nodes: {error.details()}"

    async def _sample(self, stub: "fleet_pb2_grpc.FleetAsyncStub", clock: Clock) -> None:
        metadata = metadata_of(self._config)
        request = fleet_pb2.ListNodesRequest()
        reply = await stub.ListNodes(request, timeout=ANSWER, metadata=metadata)
        now = clock()
        self.samples += (_sample(now, node) for node in reply.nodes if node.num_blocks)


def _sample(now: float, node: fleet_pb2.NodeStatus) -> NodeSample:
    load, total = node.load, node.num_blocks
    held = max(0, total - load.free_blocks - load.evictable_blocks)
    return NodeSample(
        now,
        node.name,
        held / total,
        load.evictable_blocks / total,
        load.queried_tokens,
        load.hit_tokens,
    )

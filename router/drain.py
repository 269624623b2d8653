"""Takes a node out of service without losing what runs there, and puts it back."""

import asyncio
import time

from grpc import aio

from kvmesh.errors import Code, RequestError, from_rpc_error, unavailable
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc as rpc
from router.node import Node
from router.registry import Registry

PATIENCE = 5.0  # seconds for the node to answer
POLL = 0.05  # seconds between two looks at what still runs


class Drain:
    """The node itself says that it drains: so all routers know."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def begin(self, name: str, timeout: float | None, *, move: bool) -> int:
        """Returns what still runs when all has ended, or `timeout` seconds are over. With `move`,
        streams of this router go on elsewhere then, if there is a node that takes requests.

        Raises NOT_FOUND for an unknown node, UNAVAILABLE for one that is not there.
        """
        node = self._node(name)
        await self._tell(node, pb.DrainRequest())
        await self._wait(node, timeout)
        if move and _running(node) and self._registry.up:
            for call in list(node.calls):
                call.give_up("is drained", fault=False)
        return _running(node)

    async def end(self, name: str) -> int:
        """It takes new requests again; what runs there. Raises as `begin` does."""
        node = self._node(name)
        await self._tell(node, pb.DrainRequest(resume=True))
        return _running(node)

    def _node(self, name: str) -> Node:
        for node in self._registry.nodes:
            if node.name == name and node.accepted:
                return node
            if node.name == name:
                raise unavailable(f"{name} is not there: {node.detail}")
        raise RequestError(Code.NOT_FOUND, f"no node of this fleet is called {name[:200]!r}")

    async def _tell(self, node: Node, request: pb.DrainRequest) -> None:
        stub: rpc.CacheNodeAsyncStub = rpc.CacheNodeStub(node.channel)
        try:
            await stub.Drain(request, timeout=PATIENCE)
        except aio.AioRpcError as error:
            raise unavailable(
                f"{node.name} did not answer: {from_rpc_error(error).message}"
            ) from error

    async def _wait(self, node: Node, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while _running(node) and (until is None or time.monotonic() < until):
            if not node.accepted:
                raise unavailable(f"{node.name} was lost: {node.detail}")
            await asyncio.sleep(POLL)


def _running(node: Node) -> int:
    """What it has of all routers, and what this one has not read to the end."""
    return max(node.load.running + node.load.waiting, len(node.calls))

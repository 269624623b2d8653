"""Makes nodes forget what they have cached."""

import structlog

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc as rpc
from kvmesh.v1 import fleet_pb2
from router.fan_out import each_node, none_did
from router.node import Node
from router.registry import Registry

log = structlog.get_logger("router")

PATIENCE = 30.0  # seconds for a node to forget: a step may run first


async def clear_cache(
    registry: Registry, request: fleet_pb2.ClearCacheRequest
) -> fleet_pb2.ClearCacheResponse:
    """On one node, or on all. Raises NOT_FOUND for an unknown one, UNAVAILABLE when no node could
    be told.
    """
    nodes = [node for node in registry.nodes if request.node in ("", node.name)]
    if request.node and not nodes:
        raise RequestError(
            Code.NOT_FOUND, f"no node of this fleet is called {request.node[:200]!r}"
        )

    async def clear(node: Node) -> int:
        stub: rpc.CacheNodeAsyncStub = rpc.CacheNodeStub(node.channel)
        wanted = pb.NodeClearCacheRequest(pins=request.pins)
        return (await stub.ClearCache(wanted, timeout=PATIENCE)).cleared_blocks

    cleared, failures = await each_node(nodes, clear)
    log.info("cache_cleared", nodes=cleared, pins=request.pins, failed=len(failures))
    if not cleared:
        raise none_did(failures)
    return fleet_pb2.ClearCacheResponse(
        cleared_blocks=sum(cleared.values()), nodes=cleared, failures=failures
    )

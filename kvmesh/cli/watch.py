"""Waiting for a fleet, as its router sees it."""

import asyncio

PATIENCE = 60.0  # seconds from ready processes to a router that sees them
POLL = 0.1  # seconds


async def until_nodes_up(target: str, count: int) -> None:
    """Returns when the router at `target` reports `count` nodes up.

    Raises TimeoutError with the reason that the router gives when that takes too long.
    """
    import grpc

    from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc

    detail = "the router does not answer"
    deadline = asyncio.get_running_loop().time() + PATIENCE
    async with grpc.aio.insecure_channel(target) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        while asyncio.get_running_loop().time() < deadline:
            try:
                nodes = (await stub.ListNodes(fleet_pb2.ListNodesRequest(), timeout=5)).nodes
            except grpc.RpcError as error:
                detail = f"the router answers: {error}"
            else:
                up = sum(node.health == fleet_pb2.NODE_HEALTH_UP for node in nodes)
                if up >= count:
                    return
                detail = "; ".join(f"{n.name or n.address}: {n.detail}" for n in nodes if n.detail)
            await asyncio.sleep(POLL)
    raise TimeoutError(f"not all of {count} nodes came up: {detail}")

"""Leases of a router, and what clients do with them."""

import grpc
import pytest

from kvmesh.fleet_key import FleetKey
from kvmesh.lease import METADATA, LeaseKey
from kvmesh.v1 import cache_node_pb2_grpc, inference_pb2
from tests.router.admission_fixture import who
from tests.router.asking import request

SECRET = b"0123456789abcdef" * 2
KEY = LeaseKey(FleetKey(SECRET))


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "fleet-key"
    path.write_bytes(SECRET)
    return path


async def route(fleet, *args, avoid=(), by=None, **fields):
    wanted = inference_pb2.RouteRequest(request=request(*args, **fields), avoid=avoid)
    return await fleet.inference.Route(wanted, metadata=who(by) if by else ())


async def stream(lease, metadata=()):
    """What a client of any language would do with a route."""
    async with grpc.aio.insecure_channel(lease.address) as channel:
        stub = cache_node_pb2_grpc.CacheNodeStub(channel)
        call = stub.Generate(lease.dispatch, metadata=((METADATA, lease.lease), *metadata))
        return [frame async for frame in call]


def count(fleet, event):
    """Of the metric of leases."""
    name, labels = "kvmesh_router_leases_total", {"event": event}
    return fleet.app.metrics.registry.get_sample_value(name, labels) or 0

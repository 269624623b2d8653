"""Fleet, health and reflection: what an operator asks a router."""

import asyncio

import grpc
import pytest
from google.protobuf import descriptor_pool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from kvmesh.errors import from_rpc_error
from kvmesh.v1 import fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def test_list_nodes_tells_load_health_and_index():
    async with running_fleet(StubNode("node-0", script=Script(per_token=0.02))) as fleet:
        call = fleet.inference.Generate(request("x" * 32, 100))
        await call.read()
        await eventually(lambda: fleet.app.view.nodes()[0].load.running == 1)
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks == 2)
        node = (await fleet.fleet.ListNodes(fleet_pb2.ListNodesRequest())).nodes[0]
        assert (node.name, node.address) == ("node-0", fleet.nodes[0].address)
        assert node.health == fleet_pb2.NODE_HEALTH_UP
        assert node.epoch == fleet.nodes[0].info.epoch
        assert (node.in_flight, node.load.committed_blocks) == (1, 9)
        assert node.index_mode == fleet_pb2.INDEX_MODE_EXACT
        call.cancel()
        await eventually(lambda: fleet.idle)


async def test_explain_reserves_nothing_and_names_who_is_left_out():
    nodes = StubNode("node-0"), StubNode("node-1")
    async with running_fleet(*nodes) as fleet:
        nodes[1].draining = True
        await eventually(lambda: fleet.health(1) == "NODE_HEALTH_DRAINING")
        await answer(fleet, request("x" * 64))
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks == 4)
        reply = await fleet.fleet.Explain(fleet_pb2.ExplainRequest(request=request("x" * 65)))
        route = reply.route
        assert (route.node, route.predicted_cached_tokens) == ("node-0", 64)
        assert [each.node for each in route.candidates] == ["node-0", "node-1"]
        best = route.candidates[0]
        assert best.cached.gpu == 64
        assert best.cost == best.prefill_cost + best.queue_cost + best.decode_cost
        assert (best.prefill_cost, best.queue_cost) == (6, 0)
        assert route.candidates[1].excluded.startswith("draining")
        assert len(nodes[0].requests) == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fleet.fleet.Explain(fleet_pb2.ExplainRequest(request=pb.GenerateRequest()))
        assert from_rpc_error(caught.value).field == "prompt"


async def test_health_follows_the_nodes():
    async with running_fleet(StubNode()) as fleet:
        health = health_pb2_grpc.HealthStub(fleet.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service="kvmesh.v1.Inference"))
        assert (await watch.read()).status == SERVING
        await fleet.nodes[0].stop()
        assert (await watch.read()).status == NOT_SERVING
        checked = await health.Check(health_pb2.HealthCheckRequest())
        assert checked.status == NOT_SERVING
        await fleet.nodes[0].start(fleet.nodes[0].port)
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_reflection_tells_the_whole_contract():
    async with running_fleet(StubNode()) as fleet:

        def ask():
            with grpc.insecure_channel(fleet.target) as channel:
                database = ProtoReflectionDescriptorDatabase(channel)
                pool = descriptor_pool.DescriptorPool(database)
                service = pool.FindServiceByName("kvmesh.v1.Inference")
                return database.get_services(), [each.name for each in service.methods]

        services, methods = await asyncio.to_thread(ask)
        assert {"kvmesh.v1.Inference", "kvmesh.v1.Fleet", "grpc.health.v1.Health"} <= set(services)
        assert methods == ["Generate", "Route", "RouteStream", "Tokenize", "Detokenize"]

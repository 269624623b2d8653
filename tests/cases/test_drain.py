"""A node that is drained: what it has goes on, and nothing new comes."""

import asyncio

import grpc
import pytest
from google.protobuf import duration_pb2

from kvmesh.v1 import fleet_pb2
from tests.router.asking import SLOW, answer, request, rest_of, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode

Code = grpc.StatusCode


def drain(fleet, node, **fields):
    return fleet.fleet.Drain(fleet_pb2.FleetDrainRequest(node=node, **fields))


async def test_a_drained_node_finishes_what_it_has_and_gets_nothing_new():
    nodes = [StubNode("node-0"), StubNode("node-1")]
    async with running_fleet(*nodes) as fleet:
        call = fleet.inference.Generate(request("hello", 20), metadata=SLOW)
        first = await call.read()
        node, other = first.route.node, f"node-{1 - int(first.route.node[-1])}"
        draining = asyncio.ensure_future(drain(fleet, node))
        place = int(node[-1])
        await eventually(lambda: fleet.health(place) == "NODE_HEALTH_DRAINING")
        assert {(await answer(fleet, request()))[0].route.node for _ in range(4)} == {other}
        assert not draining.done()
        rest = await rest_of(call)
        assert (text_of([first, *rest]), rest[-1].summary.node) == ("hello" * 4, node)
        assert (await draining).running == 0
        await drain(fleet, node, resume=True)
        await eventually(lambda: fleet.health(place) == "NODE_HEALTH_UP")


async def test_a_drain_that_lasts_too_long_moves_the_streams():
    nodes = [StubNode("node-0"), StubNode("node-1")]
    async with running_fleet(*nodes, policy="round-robin") as fleet:
        calls = [fleet.inference.Generate(request("hello", 100), metadata=SLOW) for _ in range(12)]
        firsts = [await call.read() for call in calls]
        there = sum(first.route.node == "node-0" for first in firsts)
        assert there >= 5  # as many failures would open a breaker
        wait = duration_pb2.Duration(nanos=100_000_000)
        assert (await drain(fleet, "node-0", timeout=wait)).running == there
        await drain(fleet, "node-0", timeout=wait, move=True)
        for call, first in zip(calls, firsts, strict=True):
            frames = [first, *await rest_of(call)]
            assert text_of(frames) == "hello" * 20
            assert frames[-1].summary.node == "node-1"
        assert fleet.breaker(0) == "closed"


async def test_a_drain_of_nobody_says_so():
    async with running_fleet(StubNode()) as fleet:
        for name, code in (("node-7", Code.NOT_FOUND), ("node-0", Code.UNAVAILABLE)):
            if name == "node-0":
                await fleet.nodes[0].stop()
                await eventually(lambda: not fleet.app.view.serving)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await drain(fleet, name)
            assert caught.value.code() == code

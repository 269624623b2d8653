"""What operators do with the fleet's cache: pin a prefix, let it go, clear; node by node."""

import asyncio

import grpc
import pytest
from google.protobuf import duration_pb2

from kvmesh.errors import from_rpc_error
from kvmesh.v1 import fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from tests.router.admission_fixture import tenants_file, who
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

Code = grpc.StatusCode
PREFIX = "p" * 70  # 4 whole blocks
DAY = 24 * 3600


def three():
    return [StubNode(f"node-{place}") for place in range(3)]


async def pin(fleet, text=PREFIX, **fields):
    prefix = pb.GenerateRequest(text=text)
    return await fleet.fleet.PinPrefix(fleet_pb2.PinPrefixRequest(prefix=prefix, **fields))


async def clear(fleet, **fields):
    return await fleet.fleet.ClearCache(fleet_pb2.ClearCacheRequest(**fields))


async def unpin(fleet, pin_id):
    return await fleet.fleet.UnpinPrefix(fleet_pb2.UnpinPrefixRequest(pin_id=pin_id))


async def refused(work):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return from_rpc_error(caught.value)


def failures(reply):
    return {each.node: each.reason for each in reply.failures}


async def gone(fleet, place):
    await fleet.nodes[place].stop()
    await eventually(lambda: fleet.health(place) == "NODE_HEALTH_DOWN", 5)


async def test_a_prefix_is_pinned_where_it_is():
    async with running_fleet(*three()) as fleet:
        holder = (await answer(fleet, request(PREFIX)))[-1].summary.node
        await eventually(lambda: any(n.indexed_blocks for n in fleet.app.view.nodes()))
        ttl = duration_pb2.Duration(seconds=60)
        pinned = await pin(fleet, ttl=ttl, priority=7)
        assert (list(pinned.nodes), pinned.blocks, failures(pinned)) == ([holder], 4, {})
        node = next(node for node in fleet.nodes if node.name == holder)
        asked, keys = node.pins[pinned.pin_id]
        assert (asked.priority, asked.ttl, len(keys)) == (7, ttl, 4)
        assert len(node.requests) == 1  # nothing had to be computed
        await eventually(lambda: fleet.idle)


async def test_nodes_that_do_not_hold_it_compute_it_first():
    async with running_fleet(*three()) as fleet:
        one = await pin(fleet, "only one " * 8)
        assert (len(one.nodes), one.blocks) == (1, 4)
        pinned = await pin(fleet, nodes=2)
        assert (len(pinned.nodes), pinned.blocks) == (2, 8)
        everywhere = await pin(fleet, nodes=9)
        assert (sorted(everywhere.nodes), everywhere.blocks) == (["node-0", "node-1", "node-2"], 12)
        await eventually(lambda: fleet.idle)
        fleet.app.ledger.check_integrity()
        frames = await answer(fleet, request(PREFIX + "x"))
        assert frames[-1].summary.usage.cached.gpu == 64


async def test_a_whole_last_block_is_pinned_and_chats_are_templated():
    async with running_fleet(StubNode()) as fleet:
        assert (await pin(fleet, "w" * 64)).blocks == 4
        prefix = pb.GenerateRequest()
        prefix.chat.messages.add(role="system", content="s" * 40)
        prefix.chat.add_generation_prompt = False
        reply = await fleet.fleet.PinPrefix(fleet_pb2.PinPrefixRequest(prefix=prefix))
        assert reply.blocks == (len("|system\n|\n") - 2 + 2 + 40) // 16


async def test_a_node_that_cannot_pin_is_told_and_holds_no_half_of_it():
    nodes = three()
    nodes[1].pin_room = 3
    nodes[2].script = Script(full=True)
    async with running_fleet(*nodes) as fleet:
        pinned = await pin(fleet, nodes=3)
        assert (list(pinned.nodes), pinned.blocks) == (["node-0"], 4)
        told = failures(pinned)
        assert told["node-1"].startswith("holds 0 of 4 blocks")
        assert told["node-2"] == "node-2 is full"
        assert not nodes[1].pins
        nodes[0].pin_room = 0
        assert (await refused(pin(fleet, "other" * 20))).code == Code.UNAVAILABLE
        await eventually(lambda: fleet.idle)


async def test_half_a_prefix_stays_pinned_neither_by_a_failure_nor_by_a_client_that_leaves():
    node = StubNode()
    async with running_fleet(node) as fleet:
        await answer(fleet, request(PREFIX[:40]))
        node.script = Script(fail_before="INVALID_ARGUMENT")
        assert (await refused(pin(fleet))).code == Code.UNAVAILABLE
        assert not node.pins
        node.script = Script(prefill=30)
        leaving = asyncio.ensure_future(pin(fleet))
        await eventually(lambda: node.running)
        assert node.pins
        leaving.cancel()
        await eventually(lambda: not node.pins and fleet.idle)


async def test_a_pin_is_let_go_by_any_router():
    async with running_fleet(*three()) as fleet:
        pinned = await pin(fleet, nodes=2)
        addresses = tuple(node.address for node in fleet.nodes)
        async with running_fleet(addresses=addresses, up=3) as other:
            reply = await unpin(other, pinned.pin_id)
            assert sorted(reply.nodes) == sorted(pinned.nodes)
            assert not any(node.pins for node in fleet.nodes)
            assert (await refused(unpin(other, pinned.pin_id))).code == Code.NOT_FOUND


async def test_unpin_tells_who_could_not_be_asked():
    async with running_fleet(*three()) as fleet:
        pinned = await pin(fleet, nodes=3)
        await gone(fleet, 1)
        reply = await unpin(fleet, pinned.pin_id)
        assert sorted(reply.nodes) == ["node-0", "node-2"]
        assert failures(reply)["node-1"].startswith("is not there")


async def test_clear_forgets_everywhere_but_what_is_pinned():
    async with running_fleet(*three()) as fleet:
        for node in fleet.nodes:
            node.held.update(number.to_bytes(16) for number in range(5))
        pinned = await pin(fleet)
        reply = await clear(fleet)
        assert (reply.cleared_blocks, sorted(reply.nodes)) == (15, ["node-0", "node-1", "node-2"])
        left = {node.name: len(node.held) for node in fleet.nodes if node.held}
        assert left == {pinned.nodes[0]: 4}
        sizes = lambda: sum(node.indexed_blocks for node in fleet.app.view.nodes())  # noqa: E731
        await eventually(lambda: sizes() == 4)
        assert (await clear(fleet, node=pinned.nodes[0], pins=True)).cleared_blocks == 4
        await eventually(lambda: sizes() == 0)


async def test_clear_tells_who_could_not_be_told():
    async with running_fleet(*three()) as fleet:
        for node in fleet.nodes:
            node.held.add(bytes(16))
        await gone(fleet, 2)
        reply = await clear(fleet)
        assert (reply.cleared_blocks, sorted(reply.nodes)) == (2, ["node-0", "node-1"])
        assert failures(reply)["node-2"].startswith("is not there")
        assert (await clear(fleet, node="node-0")).nodes == ["node-0"]
        assert (await refused(clear(fleet, node="node-2"))).code == Code.UNAVAILABLE
        assert (await refused(clear(fleet, node="node-9"))).code == Code.NOT_FOUND
        await asyncio.gather(*(node.stop() for node in fleet.nodes[:2]))
        await eventually(lambda: not fleet.app.view.serving)
        assert (await refused(clear(fleet))).code == Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": "short"}, "prefix"),
        ({"text": ""}, "prompt"),
        ({"priority": 101}, "priority"),
        ({"ttl": duration_pb2.Duration(seconds=8 * DAY)}, "ttl"),
        ({"ttl": duration_pb2.Duration()}, "ttl"),
        ({"tenant": "nobody"}, "tenant"),
    ],
)
async def test_what_is_wrong_with_a_pin_is_named(fields, field):
    async with running_fleet(StubNode()) as fleet:
        error = await refused(pin(fleet, **fields))
        assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field)
        assert (await refused(unpin(fleet, ""))).field == "pin_id"


async def test_a_pin_lies_in_the_cache_of_a_tenant(tmp_path):
    tenants = tenants_file(tmp_path, acme={}, zeta={})
    async with running_fleet(StubNode(), tenants=tenants) as fleet:
        await pin(fleet, tenant="acme")
        cached = {}
        for name in ("acme", "zeta"):
            frames = await answer(fleet, request(PREFIX), metadata=who(name))
            cached[name] = frames[-1].summary.usage.cached.gpu
        assert cached == {"acme": 64, "zeta": 0}

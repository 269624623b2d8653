"""Nodes that are full, gone, hanging, or come back."""

import asyncio
import contextlib
import signal
import time

import grpc

from tests.router.asking import answer, error, request, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.node_process import NodeProcess
from tests.router.stub_node import Script, StubNode

Code = grpc.StatusCode


@contextlib.contextmanager
def processes(*names):
    started = [NodeProcess(name) for name in names]
    try:
        yield started
    finally:
        for each in started:
            each.close()


async def node_of(fleet, metadata=()):
    return (await answer(fleet, request(), metadata=metadata))[0].route.node


async def test_a_full_node_is_passed_over():
    full = StubNode("full", script=Script(full=True))
    async with running_fleet(full, StubNode("free"), policy="round-robin") as fleet:
        routes = [(await answer(fleet, request()))[0].route for _ in range(4)]
        assert {each.node for each in routes} == {"free"}
        refused = {each.request_id for each in full.requests}
        assert refused
        assert all(each.attempt == 1 + (each.request_id in refused) for each in routes)
        await eventually(lambda: fleet.idle)


async def test_all_full_is_resource_exhausted_with_the_nodes_retry_time():
    nodes = [StubNode(f"node-{i}", script=Script(full=True)) for i in range(2)]
    async with running_fleet(*nodes) as fleet:
        refused = await error(fleet, request())
        assert (refused.code, refused.retry_after) == (Code.RESOURCE_EXHAUSTED, 0.25)
        assert all(len(node.requests) == 1 for node in nodes)
        nodes[0].script.full = False
        assert text_of(await answer(fleet, request())) == "hello"  # no event was needed


async def test_full_and_failing_together_is_full():
    full = StubNode("full", script=Script(full=True))
    failing = StubNode("failing", script=Script(fail_before="UNAVAILABLE"))
    async with running_fleet(full, failing) as fleet:
        assert (await error(fleet, request())).code == Code.RESOURCE_EXHAUSTED
        full.script = Script(fail_before="UNAVAILABLE")
        assert (await error(fleet, request())).code == Code.UNAVAILABLE


async def test_no_node_at_all_is_unavailable():
    async with running_fleet(up=0, addresses=("127.0.0.1:1",)) as fleet:
        assert (await error(fleet, request())).code == Code.UNAVAILABLE
        await eventually(lambda: fleet.health(0) == "NODE_HEALTH_DOWN")
        assert (await error(fleet, request())).code == Code.UNAVAILABLE
        assert "127.0.0.1:1" in fleet.app.view.nodes()[0].detail


async def test_a_node_that_fails_before_its_first_token_is_replaced():
    failing = StubNode("failing", script=Script(fail_before="UNAVAILABLE"))
    async with running_fleet(failing, StubNode("sound"), policy="round-robin") as fleet:
        assert {await node_of(fleet) for _ in range(3)} == {"sound"}
        metrics = (await fleet.http.get("/metrics")).text
        assert 'kvmesh_router_retries_total{code="UNAVAILABLE"}' in metrics


async def test_a_node_killed_in_mid_stream_and_others_go_on():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        async with running_fleet(up=2, addresses=addresses, policy="round-robin") as fleet:
            slow = (("x-stub", "per_token=0.05"),)
            calls = [fleet.inference.Generate(request(max_tokens=60), metadata=slow) for _ in "ab"]
            routes = [(await call.read()).route.node for call in calls]
            victim = routes.index("node-0")
            started[0].signal(signal.SIGKILL)
            killed = time.monotonic()
            others = [await node_of(fleet) for _ in range(4)]
            assert time.monotonic() - killed < 2
            assert set(others) == {"node-1"}
            for call in (calls[victim], calls[1 - victim]):  # both go on
                assert await call.read() is not grpc.aio.EOF
                call.cancel()
            await eventually(lambda: fleet.app.ledger.idle, 1)
            await eventually(lambda: fleet.health(0) == "NODE_HEALTH_DOWN", 2)


async def test_a_node_killed_before_the_first_token_costs_nobody_the_request():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        async with running_fleet(up=2, addresses=addresses, policy="round-robin") as fleet:
            slow = (("x-stub", "prefill=0.6"),)
            calls = [asyncio.create_task(answer(fleet, request(), metadata=slow)) for _ in range(4)]
            await eventually(lambda: all(n.in_flight == 2 for n in fleet.app.view.nodes()))
            started[0].signal(signal.SIGKILL)
            routes = [frames[0].route for frames in await asyncio.gather(*calls)]
            assert {each.node for each in routes} == {"node-1"}
            assert sorted(each.attempt for each in routes) == [1, 1, 2, 2]


async def test_a_node_that_hangs_is_down_and_its_requests_go_elsewhere():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        changes = {"policy": "round-robin", "node_silence": 1.0}
        async with running_fleet(up=2, addresses=addresses, **changes) as fleet:
            started[0].signal(signal.SIGSTOP)
            start = time.monotonic()
            served = await asyncio.gather(*(node_of(fleet) for _ in range(4)))
            assert time.monotonic() - start < 2
            assert set(served) == {"node-1"}
            assert fleet.health(0) == "NODE_HEALTH_DOWN"
            started[0].signal(signal.SIGCONT)
            await eventually(lambda: fleet.health(0) == "NODE_HEALTH_UP", 5)


async def test_a_draining_node_gets_nothing_new():
    nodes = [StubNode("node-0"), StubNode("node-1")]
    async with running_fleet(*nodes) as fleet:
        nodes[0].draining = True
        await eventually(lambda: fleet.health(0) == "NODE_HEALTH_DRAINING")
        assert {await node_of(fleet) for _ in range(6)} == {"node-1"}


async def test_a_gap_in_the_events_is_mended_without_a_node_going_down():
    async with running_fleet(StubNode()) as fleet:
        node = fleet.nodes[0]
        await answer(fleet, request("x" * 64))
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks == 4)
        for subscription in node.log._subscriptions:
            subscription._base += 7  # as if the stream had lost what came before
        node.clear_cache()
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks == 0)
        assert fleet.health(0) == "NODE_HEALTH_UP"

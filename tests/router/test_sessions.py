"""Requests of a session stay on one node, whichever way the client names it; and speculation."""

import grpc
import pytest

from kvmesh.errors import from_rpc_error
from kvmesh.v1 import fleet_pb2
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode


def of_session(name, text="hello"):
    made = request(text)
    made.session = name
    return made


async def post(fleet, headers=None, **body):
    body = {"prompt": "abc", "max_tokens": 1, **body}
    return await fleet.http.post("/v1/completions", json=body, headers=headers or {})


async def test_one_node_serves_a_session_and_all_of_them_use_all_nodes():
    nodes = [StubNode(f"node-{number}") for number in range(3)]
    async with running_fleet(*nodes, policy="session") as fleet:
        of = {}
        for number in range(12):
            frames = await answer(fleet, of_session(f"user-{number}", text=f"{number} a prompt"))
            of[f"user-{number}"] = frames[0].route.node
            assert frames[0].route.policy == "session"
        assert set(of.values()) == {node.name for node in nodes}
        for name, node in of.items():
            assert (await answer(fleet, of_session(name)))[0].route.node == node
            for asked in (
                await post(fleet, {"x-session-id": name}),
                await post(fleet, prompt_cache_key=name),
                await post(fleet, {"x-session-id": name}, prompt_cache_key="another"),
            ):
                assert asked.headers["x-kvmesh-node"] == node


async def test_a_session_that_is_too_long_is_named_as_the_client_called_it():
    async with running_fleet(StubNode()) as fleet:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(fleet, of_session("x" * 257))
        assert from_rpc_error(caught.value).field == "session"
        for asked, named in (
            (await post(fleet, {"x-session-id": "x" * 257}), "x-session-id"),
            (await post(fleet, prompt_cache_key="x" * 257), "prompt_cache_key"),
        ):
            assert asked.status_code == 400
            assert asked.json()["error"]["param"] == named


async def test_a_prompt_that_is_being_prefilled_draws_those_with_its_prefix():
    """No event has told of it yet; Explain shows it apart from what is cached."""
    nodes = [StubNode(f"node-{number}", script=Script(prefill=30)) for number in range(2)]
    async with running_fleet(*nodes) as fleet:
        call = fleet.inference.Generate(request("x" * 64))
        await eventually(lambda: any(node.running for node in nodes))
        busy = next(node for node in nodes if node.running)
        asked = fleet_pb2.ExplainRequest(request=request("x" * 65))
        route = (await fleet.fleet.Explain(asked)).route
        by_name = {each.node: each for each in route.candidates}
        assert by_name[busy.name].speculative_tokens == 48
        assert by_name[busy.name].cached.gpu == 0
        assert {each.speculative_tokens for each in route.candidates} == {0, 48}
        call.cancel()


async def test_a_node_that_refused_a_prompt_is_not_thought_to_hold_it():
    full, free = StubNode("node-0", script=Script(full=True)), StubNode("node-1")
    async with running_fleet(full, free) as fleet:
        for number in range(6):
            await answer(fleet, request(f"{number}" * 64))
        assert full.requests
        for number in range(6):
            asked = fleet_pb2.ExplainRequest(request=request(f"{number}" * 64))
            route = (await fleet.fleet.Explain(asked)).route
            by_name = {each.node: each for each in route.candidates}
            assert by_name["node-0"].speculative_tokens == 0
            assert route.predicted_cached_tokens in (0, 48)

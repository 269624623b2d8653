"""Tenants share no cached block unless they are configured to: gRPC, HTTP, Explain, leases."""

import grpc
import pytest

from kvmesh.errors import Code, from_rpc_error
from kvmesh.fleet_key import FleetKey
from kvmesh.lease import METADATA, LeaseKey
from kvmesh.v1 import cache_node_pb2_grpc, fleet_pb2, inference_pb2
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode
from tests.router.test_tenants import record, toml

SECRET = b"0123456789abcdef" * 2
PROMPT = "x" * 65


@pytest.fixture
async def fleet(tmp_path):
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(
        toml(
            one=record("key-one"),
            two=record("key-two"),
            open=record("key-open", shares_cache=True),
            wide=record("key-wide", shares_cache=True),
        )
    )
    key_file = tmp_path / "fleet-key"
    key_file.write_bytes(SECRET)
    node = StubNode("node-0", lease_key=LeaseKey(FleetKey(SECRET)))
    async with running_fleet(node, tenants=str(tenants), fleet_key_file=key_file) as running:
        yield running
        await eventually(lambda: running.idle)


def who(name):
    return (("authorization", f"Bearer key-{name}"),)


async def cached(fleet, name):
    """Tokens of the prompt that a tenant finds cached; all is indexed when it returns."""
    frames = await answer(fleet, request(PROMPT), metadata=who(name))
    predicted, found = frames[0].route, frames[-1].summary.usage.cached.gpu
    held = len(fleet.nodes[0].held)
    await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks == held)
    assert predicted.predicted_cached_tokens == found
    return found


async def test_a_tenant_finds_what_it_has_cached_and_no_other_does(fleet):
    assert [await cached(fleet, name) for name in ("one", "two", "one", "two")] == [0, 0, 64, 64]
    salts = [sent.salt for sent in fleet.nodes[0].requests]
    assert salts[0] == salts[2] != salts[1] == salts[3]
    assert all(salts)


async def test_tenants_that_share_find_each_others(fleet):
    assert [await cached(fleet, name) for name in ("open", "wide", "one")] == [0, 64, 0]


async def test_explain_tells_a_tenant_of_its_own_cache_alone(fleet):
    await cached(fleet, "one")
    wanted = fleet_pb2.ExplainRequest(request=request(PROMPT))
    for name, tokens in (("one", 64), ("two", 0)):
        route = (await fleet.fleet.Explain(wanted, metadata=who(name))).route
        assert (route.predicted_cached_tokens, route.candidates[0].cached.gpu) == (tokens, tokens)
        if not tokens:
            assert "no node holds the prefix" in route.reason


async def test_http_keeps_tenants_apart_and_takes_no_salt(fleet):
    async def over_http(name, **fields):
        body = {"prompt": PROMPT, "max_tokens": 2, **fields}
        headers = {"authorization": f"Bearer key-{name}"}
        return (await fleet.http.post("/v1/completions", json=body, headers=headers)).json()

    found = []
    for name in ("one", "two", "one"):
        reply = await over_http(name)
        found.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found == [0, 0, 64]
    refused = await over_http("two", cache_salt="of one")
    assert refused["error"]["param"] == "cache_salt"


async def test_a_lease_carries_the_salt_of_its_tenant_and_takes_no_other(fleet):
    await cached(fleet, "one")
    wanted = inference_pb2.RouteRequest(request=request(PROMPT))
    for name, tokens in (("one", 64), ("two", 0)):
        lease = await fleet.inference.Route(wanted, metadata=who(name))
        assert not lease.dispatch.salt
        async with grpc.aio.insecure_channel(lease.address) as channel:
            stub = cache_node_pb2_grpc.CacheNodeStub(channel)
            with_lease = ((METADATA, lease.lease),)
            forged = type(lease.dispatch)()
            forged.CopyFrom(lease.dispatch)
            forged.salt = fleet.nodes[0].requests[0].salt
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(forged, metadata=with_lease).read()
            assert caught.value.code() == Code.PERMISSION_DENIED
            frames = [frame async for frame in stub.Generate(lease.dispatch, metadata=with_lease)]
        assert frames[-1].summary.usage.cached.gpu == tokens


async def test_who_has_no_key_gets_nothing(fleet):
    for metadata in ((), who("three"), (("x-api-key", "key-on"),)):
        for call in (
            lambda m=metadata: answer(fleet, request("hi"), metadata=m),
            lambda m=metadata: fleet.inference.Route(
                inference_pb2.RouteRequest(request=request("hi")), metadata=m
            ),
            lambda m=metadata: fleet.fleet.Explain(
                fleet_pb2.ExplainRequest(request=request("hi")), metadata=m
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call()
            assert from_rpc_error(caught.value).code == Code.UNAUTHENTICATED
    assert not fleet.nodes[0].requests

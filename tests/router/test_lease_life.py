"""How long leases live, and what comes back with one."""

import asyncio

import grpc
import pytest

from kvmesh.client import Client
from kvmesh.errors import Code
from kvmesh.lease import METADATA
from kvmesh.packing import unpack_tokens
from kvmesh.v1 import cache_node_pb2_grpc, fleet_pb2, inference_pb2
from kvmesh.v1 import generate_pb2 as pb
from tests.router.asking import text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.lease_fixture import KEY, count, key_file, route, stream
from tests.router.stub_node import Script, StubNode

__all__ = ["key_file"]


async def test_an_unclaimed_lease_expires_and_gives_its_place_back(key_file, monkeypatch):
    monkeypatch.setattr("router.leases.SLACK", 0.05)
    node = StubNode(lease_key=KEY)
    async with running_fleet(node, fleet_key_file=key_file, lease_time=0.1) as fleet:
        lease = await route(fleet, "abc")
        assert not fleet.app.ledger.idle
        await eventually(lambda: fleet.idle)
        assert count(fleet, "expired") == 1
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream(lease)
        assert caught.value.code() == Code.FAILED_PRECONDITION
        assert not node.requests


async def test_a_stream_may_take_longer_than_its_lease(key_file, monkeypatch):
    monkeypatch.setattr("router.leases.SLACK", 0.05)
    node = StubNode(lease_key=KEY, script=Script(per_token=0.02))
    async with running_fleet(node, fleet_key_file=key_file, lease_time=0.1) as fleet:
        lease = await route(fleet, "abc", 40)
        async with grpc.aio.insecure_channel(lease.address) as channel:
            stub = cache_node_pb2_grpc.CacheNodeStub(channel)
            call = stub.Generate(lease.dispatch, metadata=((METADATA, lease.lease),))
            for _ in range(25):  # half a second
                await call.read()
            assert fleet.app.ledger.in_flight("node-0") == 1
            assert count(fleet, "expired") == 0
            rest = 0
            while await call.read() is not grpc.aio.EOF:
                rest += 1
            assert rest == 15
        await eventually(lambda: fleet.idle)


async def test_only_what_nobody_claims_expires_and_again_after_that(key_file, monkeypatch):
    monkeypatch.setattr("router.leases.SLACK", 0.05)
    node = StubNode(lease_key=KEY, script=Script(per_token=0.02))
    async with running_fleet(node, fleet_key_file=key_file, lease_time=0.2) as fleet:
        await route(fleet, "abc")
        running = asyncio.create_task(stream(await route(fleet, "abc", 40)))
        await route(fleet, "abc")
        await eventually(lambda: count(fleet, "expired") == 2)
        assert fleet.app.leases.open == 1
        await running
        await route(fleet, "abc")
        await eventually(lambda: fleet.idle)
        assert [count(fleet, event) for event in ("granted", "claimed", "expired")] == [4, 1, 3]


async def test_a_lease_whose_end_fails_keeps_no_other_and_holds_nothing(key_file, monkeypatch):
    monkeypatch.setattr("router.leases.SLACK", 0.05)
    async with running_fleet(
        StubNode(lease_key=KEY), fleet_key_file=key_file, lease_time=0.2
    ) as fleet:
        release, failed = fleet.app.ledger.release, []

        def failing_once(reservation):
            release(reservation)
            if not failed:
                failed.append(reservation)
                raise RuntimeError("once")

        monkeypatch.setattr(fleet.app.ledger, "release", failing_once)
        for _ in range(3):
            await route(fleet, "abc")
        await eventually(lambda: failed and fleet.idle and fleet.app.leases.open == 0)
        assert count(fleet, "expired") == 2


async def test_a_prompt_of_token_ids_stays_with_a_client_that_has_it(key_file):
    node = StubNode(lease_key=KEY)
    async with running_fleet(node, fleet_key_file=key_file) as fleet:

        async def lease(**prompt):
            wanted = pb.GenerateRequest(sampling=pb.SamplingParams(max_tokens=2), **prompt)
            return await fleet.inference.Route(
                inference_pb2.RouteRequest(request=wanted, without_token_ids=True)
            )

        text = await lease(text="abc")
        assert text_of(await stream(text)) == "ab"
        ids = text.dispatch.token_ids
        known = await lease(token_ids=ids)
        assert not known.dispatch.token_ids
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream(known)
        assert caught.value.code() == Code.PERMISSION_DENIED
        known.dispatch.token_ids = ids
        assert text_of(await stream(known)) == "ab"


async def test_the_clients_stream_puts_the_prompt_back(key_file):
    node = StubNode(lease_key=KEY)
    async with running_fleet(node, fleet_key_file=key_file) as fleet:

        def ask():
            with Client(fleet.target, timeout=20, direct=True) as client:
                return list(client.generate(token_ids=[1, 2, 3], max_tokens=2))

        await asyncio.to_thread(ask)
        assert unpack_tokens(node.requests[-1].token_ids) == [1, 2, 3]


async def test_the_last_requests_tell_what_the_node_found_for_a_lease(key_file):
    node = StubNode(lease_key=KEY)
    async with running_fleet(node, fleet_key_file=key_file) as fleet:

        async def last():
            return (await fleet.fleet.Overview(fleet_pb2.OverviewRequest())).requests[0]

        lease = await route(fleet, "abc", 4)
        assert ((await last()).request_id, (await last()).summary.node) == (
            lease.route.request_id,
            "",
        )
        await stream(lease)
        await eventually(lambda: fleet.idle)
        told = await last()
        assert (told.endpoint, told.summary.node) == ("route", "node-0")
        assert (told.summary.usage.prompt_tokens, told.summary.usage.completion_tokens) == (3, 4)

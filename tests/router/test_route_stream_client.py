"""Client(direct=True) takes its leases from one stream, through whatever happens to the router."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.cut_proxy import CutProxy
from kvmesh.client import Client, RequestError
from kvmesh.errors import Code
from router.grpc_front import InferenceFront
from router.route_stream import RouteStream
from tests.router.admission_fixture import metric, tenants_file
from tests.router.fleet_fixture import config, eventually, running_fleet
from tests.router.lease_fixture import KEY, SECRET, count
from tests.router.stub_node import Script, StubNode


@pytest.fixture
def options(tmp_path, monkeypatch):
    """Of a router with leases that expire soon."""
    monkeypatch.setattr("router.leases.SLACK", 0.05)
    path = tmp_path / "fleet-key"
    path.write_bytes(SECRET)
    return {"fleet_key_file": path, "lease_time": 0.6}


@pytest.fixture
def streams(monkeypatch):
    """The streams that routers have served, and serve."""
    seen, serve = [], RouteStream.serve

    async def counted(self):
        seen.append(self)
        await serve(self)

    monkeypatch.setattr(RouteStream, "serve", counted)
    return seen


def node(name="node-0", **changes):
    return StubNode(name, lease_key=KEY, **changes)


def client_of(fleet, **changes):
    return Client(fleet.target, timeout=20, direct=True, **changes)


def completed(client, prompt="abc", **fields):
    return client.generate(prompt, max_tokens=4, **fields).result().text


async def test_all_requests_of_a_client_share_a_stream(options, streams):
    def work(client):
        with ThreadPoolExecutor(24) as threads:
            return list(threads.map(lambda _: completed(client), range(120)))

    async with running_fleet(node(), node("node-1"), **options) as fleet:
        with client_of(fleet) as client:
            assert await asyncio.to_thread(work, client) == ["abca"] * 120
            assert (len(streams), count(fleet, "granted")) == (1, 120)
            await eventually(lambda: fleet.idle)


async def test_the_client_goes_on_when_its_router_comes_back(options, streams):
    async with running_fleet(node(), **options) as fleet:
        with client_of(fleet) as client:
            assert await asyncio.to_thread(completed, client) == "abca"
            port, address = fleet.app.grpc_port, fleet.nodes[0].address
            await fleet.app.stop()
            with pytest.raises(RequestError) as caught:
                await asyncio.to_thread(completed, client)
            assert caught.value.code == Code.UNAVAILABLE
            fleet.app = type(fleet.app)(config(address, grpc_port=port, **options))
            await fleet.app.start()
            await eventually(lambda: fleet.app.view.serving, 5)
            texts = await asyncio.to_thread(until_it_works, client)
            assert texts == ["abca"] * 3
            assert len(streams) == 2
            await eventually(lambda: fleet.idle)


def until_it_works(client):
    """Three answers; gRPC waits for a moment before it connects again."""
    done, pause = [], threading.Event()
    for _ in range(100):
        try:
            done.append(completed(client))
        except RequestError as error:
            if error.code is not Code.UNAVAILABLE:
                raise
            pause.wait(0.1)
        if len(done) == 3:
            break
    return done


async def test_orders_that_come_while_the_router_owes_an_answer_go_together(options, monkeypatch):
    monkeypatch.setattr("kvmesh.route_stream.GATHER", 60.0)
    sizes, take = [], RouteStream._take

    def counted(self, message):
        sizes.append(len(message.orders))
        take(self, message)

    monkeypatch.setattr(RouteStream, "_take", counted)
    async with running_fleet(node(num_blocks=8, script=Script(per_token=0.02)), **options) as fleet:
        with client_of(fleet) as client:
            work = [asyncio.create_task(asyncio.to_thread(big, client))]
            await eventually(lambda: count(fleet, "claimed") == 1)
            work.append(asyncio.create_task(asyncio.to_thread(big, client)))  # waits for room
            await eventually(lambda: fleet.app.admission.in_flight == 2)
            work += [asyncio.create_task(asyncio.to_thread(completed, client)) for _ in range(5)]
            await asyncio.gather(*work)
    assert sizes == [1, 1, 5]


async def test_what_a_stream_owes_when_it_breaks_is_asked_again(options, streams):
    async with running_fleet(node(num_blocks=8, script=Script(per_token=0.01)), **options) as fleet:
        proxy = CutProxy(fleet.app.grpc_port)
        await proxy.start()
        with Client(f"127.0.0.1:{proxy.port}", timeout=20, direct=True) as client:
            first = asyncio.create_task(asyncio.to_thread(big, client))
            await eventually(lambda: count(fleet, "claimed") == 1)
            waiting = asyncio.create_task(asyncio.to_thread(big, client))
            await eventually(lambda: fleet.app.admission.in_flight == 2)
            proxy.cut()
            assert [await first, await waiting] == [90, 90]
            assert len(streams) == 2
        await proxy.stop()
        await eventually(lambda: fleet.idle and fleet.app.leases.open == 0, 5)


def big(client):
    """Takes 6 blocks of a node."""
    return len(client.generate("abc", max_tokens=90).result().token_ids)


async def test_who_leaves_while_it_waits_holds_nothing(options):
    async with running_fleet(node(num_blocks=8, script=Script(per_token=0.02)), **options) as fleet:
        with client_of(fleet) as client:
            running = asyncio.create_task(asyncio.to_thread(big, client))
            await eventually(lambda: count(fleet, "claimed") == 1)
            left = client.generate("abc", max_tokens=90)
            waiting = asyncio.create_task(asyncio.to_thread(left.result))
            await eventually(lambda: fleet.app.admission.in_flight == 2)
            left.cancel()
            with pytest.raises(RequestError) as caught:
                await waiting
            assert caught.value.code == Code.CANCELLED
            await eventually(lambda: fleet.app.admission.in_flight == 1)
            with pytest.raises(RequestError) as late:
                await asyncio.to_thread(client.generate("abc", max_tokens=90, timeout=0.4).result)
            assert late.value.code in (Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED)
            await eventually(lambda: fleet.app.admission.in_flight == 1)
            assert await running == 90
            await eventually(lambda: fleet.idle and fleet.app.leases.open == 0, 5)


def by_ids(client):
    return len(client.generate(token_ids=[1, 2, 3], max_tokens=4).result().token_ids)


async def test_an_older_router_answers_route(options, monkeypatch):
    handlers = InferenceFront.handlers

    def without_streams(self):
        return {name: each for name, each in handlers(self).items() if name != "RouteStream"}

    monkeypatch.setattr(InferenceFront, "handlers", without_streams)
    async with running_fleet(node(), **options) as fleet:
        with client_of(fleet) as client:
            for _ in range(2):
                assert await asyncio.to_thread(completed, client) == "abca"
            assert await asyncio.to_thread(by_ids, client) == 4
        assert count(fleet, "granted") == 3
        await eventually(lambda: fleet.idle)


async def test_what_is_too_long_for_a_message_or_has_its_own_metadata_goes_by_route(
    options, streams, tmp_path
):
    tenants = tenants_file(tmp_path, acme={}, zeta={"requests_per_second": 0.001})
    async with running_fleet(node(), tenants=tenants, **options) as fleet:
        with client_of(fleet, api_key="key-acme") as client:
            zeta = [("authorization", "Bearer key-zeta")]
            first = client.generate("abc", max_tokens=4, metadata=zeta)
            assert (await asyncio.to_thread(first.result)).text == "abca"
            second = client.generate("abc", max_tokens=4, metadata=zeta)
            with pytest.raises(RequestError, match="requests_per_second: tenant zeta"):
                await asyncio.to_thread(second.result)
            with pytest.raises(RequestError) as caught:
                await asyncio.to_thread(completed, client, "x" * (5 << 20))
            assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "request")
            assert not streams
            assert await asyncio.to_thread(completed, client) == "abca"
            assert len(streams) == 1
        assert await metric(fleet, "requests_total", endpoint="route", code="OK") == 2


async def test_token_ids_that_are_too_long_for_a_message_go_by_route(options, streams, monkeypatch):
    monkeypatch.setattr("kvmesh.route_stream.MAX_BYTES", 4)
    async with running_fleet(node(), **options) as fleet:
        with client_of(fleet) as client:
            assert await asyncio.to_thread(by_ids, client) == 4
        await eventually(lambda: count(fleet, "ended") == 1)
        assert not streams


async def test_a_client_that_is_not_known_is_told_so(options, tmp_path):
    tenants = tenants_file(tmp_path, acme={})
    async with running_fleet(node(), tenants=tenants, **options) as fleet:
        with client_of(fleet, api_key="wrong") as client:
            for _ in range(2):
                with pytest.raises(RequestError) as caught:
                    await asyncio.to_thread(completed, client)
                assert caught.value.code == Code.UNAUTHENTICATED


async def test_a_reply_that_is_none_fails_alone(options, streams, monkeypatch):
    send = RouteStream._send

    def garbled(self, message):
        for reply in message.replies:
            if reply.status:
                reply.status = b"\xff"
        send(self, message)

    monkeypatch.setattr(RouteStream, "_send", garbled)
    async with running_fleet(node(), **options) as fleet:
        with client_of(fleet) as client:
            with pytest.raises(RequestError) as caught:
                await asyncio.to_thread(completed, client, priority=1000)
            assert caught.value.code == Code.INTERNAL
            assert await asyncio.to_thread(completed, client) == "abca"
            assert len(streams) == 1
        await eventually(lambda: fleet.idle)

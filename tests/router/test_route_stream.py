"""Leases over one stream: what fails fails alone, and nothing stays behind."""

import asyncio
import time
from contextlib import asynccontextmanager, suppress

import grpc
import pytest
from google.rpc import status_pb2

from kvmesh.errors import Code, from_proto
from kvmesh.v1 import inference_pb2 as pb
from tests.router.admission_fixture import metric, tenants_file, who
from tests.router.asking import request, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.lease_fixture import KEY, SECRET, stream
from tests.router.stub_node import StubNode

BIG = ("abc", 90)
"""Takes 6 blocks of the 8 that the node has here: another has to wait."""


@pytest.fixture
def key_file(tmp_path, monkeypatch):
    """With leases that expire soon."""
    monkeypatch.setattr("router.leases.SLACK", 0.05)
    path = tmp_path / "fleet-key"
    path.write_bytes(SECRET)
    return path


@asynccontextmanager
async def running(key_file, **options):
    """A router over a node of 8 blocks. Nothing is held in the end."""
    node = StubNode("node-0", num_blocks=8, lease_key=KEY)
    options = {"fleet_key_file": key_file, "lease_time": 0.6, **options}
    async with running_fleet(node, **options) as fleet:
        yield fleet
        await eventually(lambda: fleet.idle and fleet.app.leases.open == 0, 5)
        fleet.app.ledger.check_integrity()


def order(number, *args, **fields):
    wanted = pb.RouteRequest(request=request(*args, **fields))
    return pb.RouteOrder(id=number, request=wanted.SerializeToString())


class Stream:
    """A client that keeps what has come, by id."""

    def __init__(self, fleet, by=None):
        self.call = fleet.inference.RouteStream(metadata=who(by) if by else ())
        self.came = {}

    async def send(self, *orders, given_up=()):
        await self.call.write(pb.RouteOrders(orders=orders, given_up=given_up))

    async def ask(self, *orders):
        """Their answers, in the same order: a lease or a RequestError."""
        await self.send(*orders)
        return [await self.answer(each.id) for each in orders]

    async def answer(self, number):
        while number not in self.came:
            message = await asyncio.wait_for(self.call.read(), 10)
            assert message is not grpc.aio.EOF
            for reply in message.replies:
                assert reply.id not in self.came
                self.came[reply.id] = reply
        reply = self.came[number]
        if reply.WhichOneof("result") == "lease":
            return reply.lease
        return from_proto(status_pb2.Status.FromString(reply.status))

    async def end(self):
        """Code and message of the stream's end, and how many answers came before."""
        with suppress(grpc.aio.AioRpcError):
            while (message := await asyncio.wait_for(self.call.read(), 10)) is not grpc.aio.EOF:
                self.came |= {reply.id: reply for reply in message.replies}
        return await self.call.code(), await self.call.details(), len(self.came)


async def test_a_stream_gives_the_leases_that_route_gives(key_file):
    async with running(key_file) as fleet:
        client = Stream(fleet)
        for number in (7, 8):
            [lease] = await client.ask(order(number, "abc", 4))
            assert (lease.route.node, lease.route.prompt_tokens) == ("node-0", 3)
            assert text_of(await stream(lease)) == "abca"
        one, two = await client.ask(order(1, "abc", 1), order(2, "xyz", 2))
        assert [text_of(await stream(each)) for each in (two, one)] == ["xy", "a"]
        await client.call.done_writing()
        assert await client.end() == (Code.OK, "", 4)
        assert await metric(fleet, "requests_total", endpoint="route", code="OK") == 4


async def test_what_fails_fails_alone_with_its_details(key_file):
    async with running(key_file, max_request_bytes=1000, max_in_flight=2) as fleet:
        client = Stream(fleet)
        [first] = await client.ask(order(1, "abc", 1))
        late = pb.RouteOrder(id=7)
        late.timeout.seconds = 1 << 60
        wrong = await client.ask(
            pb.RouteOrder(id=2, request=b"\xff\xff"),
            order(3, "abc", priority=1000),
            order(4, "x" * 1001),
            late,
        )
        assert [each.code for each in wrong] == 4 * [Code.INVALID_ARGUMENT]
        assert [each.field for each in wrong] == ["request", "priority", "request", "timeout"]
        [second], [refused] = [await client.ask(order(each, "abc", 1)) for each in (5, 6)]
        assert (refused.code, refused.retry_after) == (Code.RESOURCE_EXHAUSTED, 1.0)
        assert [text_of(await stream(each)) for each in (first, second)] == ["a", "a"]
        client.call.cancel()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.RouteOrders(orders=[pb.RouteOrder(id=each) for each in range(65)]), "orders"),
        (pb.RouteOrders(given_up=range(1025)), "given_up"),
        (b"\xff\xff", "request"),
        (pb.RouteOrders(orders=[pb.RouteOrder(request=bytes(4 << 20))]), "orders"),
    ],
    ids=["too many", "too many given up", "malformed", "too long"],
)
async def test_a_message_that_is_none_ends_the_stream_and_what_waits(key_file, message, field):
    async with running(key_file) as fleet:
        call = fleet.channel.stream_stream(
            "/kvmesh.v1.Inference/RouteStream",
            request_serializer=bytes_of,
            response_deserializer=pb.RouteReplies.FromString,
        )()
        await call.write(pb.RouteOrders(orders=[order(1, *BIG)]))
        assert [each.id for each in (await call.read()).replies] == [1]
        await call.write(pb.RouteOrders(orders=[order(2, *BIG)]))
        await eventually(lambda: fleet.app.admission.in_flight == 2)
        await call.write(message)
        assert await call.code() == Code.INVALID_ARGUMENT
        assert (await call.details()).startswith(f"{field}: ")
        await eventually(lambda: fleet.app.admission.in_flight == 1)


def bytes_of(message):
    return message if isinstance(message, bytes) else message.SerializeToString()


async def test_ids_are_different_and_a_stream_owes_no_more_than_its_limit(key_file, monkeypatch):
    monkeypatch.setattr("router.route_stream.MAX_OWED", 2)
    async with running(key_file) as fleet:
        client = Stream(fleet)
        await client.ask(order(1, *BIG))
        await client.send(order(2, *BIG), order(3, *BIG))
        [refused] = await client.ask(order(4, "abc", 1))
        assert (refused.code, refused.retry_after) == (Code.RESOURCE_EXHAUSTED, 1.0)
        assert await metric(fleet, "refused_total", reason="route_stream") == 1
        other = Stream(fleet)
        await other.send(order(2, *BIG), order(2, *BIG))
        assert (await other.answer(2)).field == "id"
        for each in (client, other):
            each.call.cancel()


async def test_an_order_that_is_given_up_waits_no_longer(key_file):
    async with running(key_file) as fleet:
        client = Stream(fleet)
        await client.ask(order(1, *BIG))
        await client.send(order(2, *BIG), order(3, *BIG))
        await eventually(lambda: fleet.app.admission.in_flight == 3)
        await client.send(given_up=[2, 99])
        await eventually(lambda: fleet.app.admission.in_flight == 2)
        assert (await client.answer(3)).route.node == "node-0"  # when the first has expired
        assert 2 not in client.came
        client.call.cancel()


async def test_an_order_waits_until_its_deadline(key_file):
    async with running(key_file, lease_time=1.5) as fleet:
        client = Stream(fleet)
        await client.ask(order(1, *BIG))
        late = order(2, *BIG)
        late.timeout.FromMilliseconds(300)
        start = time.monotonic()
        [refused] = await client.ask(late)
        assert refused.code == Code.RESOURCE_EXHAUSTED
        assert "cannot start in time" in refused.message
        assert time.monotonic() - start < 1.0
        client.call.cancel()


async def test_a_stream_that_is_cut_leaves_nothing(key_file):
    async with running(key_file) as fleet:
        client = Stream(fleet)
        await client.ask(order(1, *BIG))
        await client.send(*(order(number, *BIG) for number in range(2, 40)))
        await eventually(lambda: fleet.app.admission.in_flight == 39)
        client.call.cancel()
        await eventually(lambda: fleet.app.admission.in_flight == 1)  # until its lease expires
        assert fleet.app.leases.open == 1


async def test_a_key_that_is_taken_away_gets_no_lease_more(key_file, tmp_path):
    tenants = tenants_file(tmp_path, acme={}, zeta={})
    async with running(key_file, tenants=tenants) as fleet:
        stranger = Stream(fleet, by="nobody")
        assert (await stranger.end())[0] == Code.UNAUTHENTICATED
        acme, zeta = Stream(fleet, by="acme"), Stream(fleet, by="zeta")
        for client in (acme, zeta):
            [lease] = await client.ask(order(0, "abc", 1))
            await stream(lease)
        tenants_file(tmp_path, zeta={})
        await eventually(lambda: len(fleet.app._admitting._tenants) == 1, 5)
        [refused] = await acme.ask(order(1, "abc", 1))
        assert refused.code == Code.UNAUTHENTICATED
        [lease] = await zeta.ask(order(1, "abc", 1))
        assert text_of(await stream(lease)) == "a"
        for client in (acme, zeta):
            client.call.cancel()


async def test_a_router_that_stops_ends_its_streams_at_once(key_file):
    async with running_fleet(
        StubNode("node-0", lease_key=KEY), fleet_key_file=key_file, shutdown_grace=20
    ) as fleet:
        client = Stream(fleet)
        [lease] = await client.ask(order(1, "abc", 1))
        await stream(lease)
        start = time.monotonic()
        await fleet.app.stop()
        assert time.monotonic() - start < 10
        assert await client.end() == (Code.OK, "", 1)


async def test_without_a_key_there_are_no_streams():
    async with running_fleet(StubNode()) as fleet:
        code, message, _ = await Stream(fleet).end()
        assert (code, message.partition(":")[0]) == (Code.UNIMPLEMENTED, "lease")

"""The node lets a client in with a lease, once, and tells the router of it."""

import asyncio
import ssl
import time
import urllib.request
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

import grpc
import pytest

from cache_node.node import Node
from kvmesh.cli.ports import free_ports
from kvmesh.errors import from_rpc_error
from kvmesh.fleet_key import FleetKey
from kvmesh.lease import METADATA, LeaseKey
from kvmesh.packing import pack_tokens
from kvmesh.tls import channel_credentials, open_aio_channel
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, generate_pb2
from tests.cache_node.conftest import CONFIG
from tests.cache_node.live_node import LiveNode, collect
from tests.certificates import Authority

Code = grpc.StatusCode
SECRET = b"0123456789abcdef" * 2
KEY = LeaseKey(FleetKey(SECRET))
NUMBERS = count(1)


@asynccontextmanager
async def running(executor, directory, *, credentials=None, **changes):
    node = Node(replace(CONFIG, **changes), executor, directory)
    async with (
        node.serve() as port,
        open_aio_channel(f"127.0.0.1:{port}", credentials) as channel,
    ):
        live = LiveNode(node, port, channel)
        yield live
        await live.settle()


@pytest.fixture
async def live(executor, smollm2, tmp_path):
    path = tmp_path / "fleet-key"
    path.write_bytes(SECRET)
    async with running(executor, smollm2, fleet_key_file=path) as node:
        yield node


def request(max_tokens=4, tokens=(5, 6, 7), **fields):
    sampling = generate_pb2.SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    fields = {"request_id": f"leased-{next(NUMBERS)}", "attempt": 1, "router_id": "r"} | fields
    return pb.NodeGenerateRequest(token_ids=pack_tokens(tokens), sampling=sampling, **fields)


def leased(live, message, *, salt=b"", seconds=10.0, lease=None):
    lease = lease or KEY.sign(message, CONFIG.node_name, salt, time.time() + seconds)
    return live.stub.Generate(message, metadata=((METADATA, lease),))


async def refusal(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(call)
    return from_rpc_error(caught.value)


async def test_a_leased_request_runs_once(live):
    message = request()
    lease = KEY.sign(message, CONFIG.node_name, b"", time.time() + 10)
    assert len((await collect(leased(live, message, lease=lease))).tokens) == 4
    again = await refusal(leased(live, message, lease=lease))
    assert (again.code, again.field) == (Code.PERMISSION_DENIED, "lease")
    assert "used" in again.message


async def test_a_wrong_or_expired_lease_is_refused(live):
    message = request()
    other = await refusal(leased(live, message, lease=KEY.sign(message, "node-7", b"", 9e9)))
    assert other.code == Code.PERMISSION_DENIED
    assert (await refusal(leased(live, message, lease=b"x"))).code == Code.PERMISSION_DENIED
    late = await refusal(leased(live, message, seconds=-1))
    assert (late.code, late.field) == (Code.FAILED_PRECONDITION, "lease")
    dead = request(epoch=live.node.info.epoch - 1)
    assert (await refusal(leased(live, dead))).code == Code.FAILED_PRECONDITION


async def test_a_node_without_a_key_serves_no_leases(executor, smollm2):
    async with running(executor, smollm2) as live:
        refused = await refusal(leased(live, request()))
        assert (refused.code, refused.field) == (Code.UNIMPLEMENTED, "lease")


async def test_the_salt_in_the_lease_keeps_tenants_apart(live):
    tokens = list(range(100, 164))
    first = await collect(leased(live, request(tokens=tokens), salt=b"one"))
    other = await collect(leased(live, request(tokens=tokens), salt=b"two"))
    again = await collect(leased(live, request(tokens=tokens), salt=b"one"))
    assert (first.cached_tokens, other.cached_tokens) == (0, 0)
    assert again.cached_tokens >= 48
    assert first.tokens == other.tokens == again.tokens


async def test_the_router_hears_of_its_leases_and_of_no_others(live):
    """Claimed, ended, and what it took; a stream that opens later begins with all that runs."""
    watch = live.stub.WatchState(pb.WatchStateRequest(router_id="r"))
    first = await watch.read()
    assert (list(first.leases), first.all_leases) == ([], True)
    news = aiter(reports(watch))
    endless = request(max_tokens=900)
    call = leased(live, endless)
    await call.read()
    await collect(leased(live, request(router_id="another")))
    claimed = await anext(news)
    assert (claimed.request_id, claimed.attempt, claimed.ended) == (endless.request_id, 1, False)
    later = await live.stub.WatchState(pb.WatchStateRequest(router_id="r")).read()
    assert [each.request_id for each in later.leases] == [endless.request_id]
    assert later.all_leases
    call.cancel()
    ended = await anext(news)
    assert (ended.request_id, ended.ended) == (endless.request_id, True)
    assert not ended.HasField("usage")
    short = request()
    await collect(leased(live, short))
    assert (await anext(news)).request_id == short.request_id
    ended = await anext(news)
    assert (ended.ended, ended.usage.completion_tokens, ended.usage.prompt_tokens) == (True, 4, 3)
    watch.cancel()


async def reports(watch):
    """One after the other: a state may bring several."""
    while True:
        state = await watch.read()
        assert not state.all_leases
        for report in state.leases:
            yield report


async def test_metrics_are_served_with_the_same_certificate(executor, smollm2, tmp_path):
    authority, (port,) = Authority(tmp_path), free_ports("127.0.0.1", 1)
    files = authority.issue("node")
    fields = {"tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
    router = channel_credentials(authority.issue("router"))
    trusting = ssl.create_default_context(cafile=files.ca)
    async with running(executor, smollm2, credentials=router, metrics_port=port, **fields):

        def scrape():
            url = f"https://127.0.0.1:{port}/metrics"
            with urllib.request.urlopen(url, context=trusting, timeout=20) as reply:
                return reply.read()

        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|eof"):
            await asyncio.to_thread(scrape)
        trusting.load_cert_chain(files.cert, files.key)
        assert b"kvmesh_num_requests_running" in await asyncio.to_thread(scrape)


async def test_with_names_of_routers_others_may_only_claim_leases(executor, smollm2, tmp_path):
    authority = Authority(tmp_path)
    key = tmp_path / "fleet-key"
    key.write_bytes(SECRET)
    files = authority.issue("node")
    fields = {
        "tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca,
        "router_names": ("router",), "fleet_key_file": key,
    }  # fmt: skip
    router = channel_credentials(authority.issue("router"))
    client = channel_credentials(authority.issue("client"))
    async with running(executor, smollm2, credentials=router, **fields) as live:
        assert len((await live.generate([5, 6, 7])).tokens) == 8
        async with open_aio_channel(f"127.0.0.1:{live.port}", client) as channel:
            stub = cache_node_pb2_grpc.CacheNodeStub(channel)
            near = LiveNode(live.node, live.port, channel)
            assert len((await collect(leased(near, request()))).tokens) == 4
            for call in (
                stub.Generate(request()),
                stub.WatchState(pb.WatchStateRequest()),
                stub.Info(pb.InfoRequest()),
                stub.Drain(pb.DrainRequest()),
                stub.Pin(pb.PinRequest(pin_id="p")),
                stub.Abort(pb.AbortRequest(request_id="r")),
                stub.CheckIntegrity(pb.CheckIntegrityRequest()),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await (call.read() if hasattr(call, "read") else call)
                assert caught.value.code() == Code.PERMISSION_DENIED
    with pytest.raises(ValueError, match="tls_ca: must be set beside router_names"):
        replace(CONFIG, router_names=("router",))

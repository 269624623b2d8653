"""How much metadata a client may send beside a request, over gRPC and HTTP."""

import grpc
import pytest

from tests.router.asking import answer, request, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0"), max_header_bytes=16 << 10) as running:
        yield running
        await eventually(lambda: running.idle)


async def test_grpc_takes_metadata_up_to_its_bound_and_refuses_more(fleet):
    for size in (1 << 10, 15 << 10):
        frames = await answer(fleet, request("abc", 3), metadata=(("x-own", "v" * size),))
        assert text_of(frames) == "abc"
        assert fleet.nodes[0].metadata[-1]["x-own"] == "v" * size
    many = tuple((f"x-own-{place}", "v" * 100) for place in range(200))
    for large in ((("x-own", "v" * (17 << 10)),), many):
        for _ in range(5):  # not by chance
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer(fleet, request("abc", 3), metadata=large)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(fleet.nodes[0].requests) == 2


async def test_http_refuses_a_larger_head_with_431(fleet):
    body = {"prompt": "abc", "max_tokens": 3}
    for size, status in ((15 << 10, 200), (17 << 10, 431)):
        reply = await fleet.http.post("/v1/completions", json=body, headers={"x-own": "v" * size})
        assert reply.status_code == status

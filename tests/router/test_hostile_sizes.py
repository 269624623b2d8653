"""What is large and wrong costs its sender time, and nobody else."""

import asyncio
import time
from contextlib import asynccontextmanager

import grpc
import pytest

from kvmesh.errors import from_rpc_error
from kvmesh.v1 import generate_pb2 as pb
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode

Code = grpc.StatusCode
SIZE = 3_900_000  # just below the bound
STALL = 2.5  # seconds of this process's CPU time, whatever else the machine does


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0")) as running:
        yield running
        await eventually(lambda: running.idle)


@asynccontextmanager
async def nobody_waits():
    """Fails when the event loop of the router, which is ours too, stood still."""
    longest = 0.0

    async def tick():
        nonlocal longest
        while True:
            start = time.process_time()
            await asyncio.sleep(0.01)
            longest = max(longest, time.process_time() - start)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
    assert longest < STALL


def repeated(head, element, tail):
    return head + b",".join([element] * (SIZE // (len(element) + 1))) + tail


BODIES = {
    "texts": ("/v1/completions", repeated(b'{"prompt":[', b"{}", b"]}"), "prompt"),
    "lists": ("/v1/completions", repeated(b'{"prompt":[', b"[]", b",1]}"), "prompt"),
    "ids": ("/v1/completions", repeated(b'{"prompt":[', b"1", b"]}"), "prompt"),
    "stop": ("/v1/completions", repeated(b'{"prompt":"x","stop":[', b"1", b"]}"), "stop"),
    "biases": (
        "/v1/completions",
        b'{"prompt":"x","logit_bias":{'
        + b",".join(b'"%d":"x"' % place for place in range(300_000))
        + b"}}",
        "logit_bias",
    ),
    "messages": (
        "/v1/chat/completions",
        repeated(b'{"messages":[', b"{}", b"]}"),
        "messages",
    ),
    "parts": (
        "/v1/chat/completions",
        repeated(b'{"messages":[{"role":"user","content":[', b"{}", b"]}]}"),
        "messages[0].content",
    ),
    "tools": (
        "/v1/chat/completions",
        repeated(b'{"messages":[{"role":"user"}],"tools":[', b"1", b"]}"),
        "tools",
    ),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_body_of_a_million_wrong_things_stops_no_other_request(fleet, case):
    path, body, field = BODIES[case]
    async with nobody_waits():
        answer = await fleet.http.post(path, content=body, timeout=60)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"].startswith(field)


async def refused(fleet, raw):
    call = fleet.channel.unary_stream("/kvmesh.v1.Inference/Generate")(raw)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [frame async for frame in call]
    return from_rpc_error(caught.value)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        pytest.param(b"\x08\x01" * (SIZE // 2) + b"\x12\x01\xff", "request", id="bad at the end"),
        pytest.param(b"\x08\x01" * SIZE + b"\x12\x01a", "request", id="too large"),
        pytest.param(b"\x12\x80\x89\x7a" + b"\xff" * 2_000_000, "text", id="bad at once"),
    ],
)
async def test_a_message_of_a_million_fields_stops_no_other_request(fleet, raw, field):
    async with nobody_waits():
        error = await refused(fleet, raw)
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, field)


async def test_a_long_text_is_tokenised_beside_the_other_requests(fleet):
    async with nobody_waits():
        error = await refused(fleet, pb.GenerateRequest(text="a " * 1_900_000).SerializeToString())
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "prompt")


async def test_a_million_messages_are_not_rendered(fleet):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user")] * 500_000)
    async with nobody_waits():
        error = await refused(fleet, pb.GenerateRequest(chat=chat).SerializeToString())
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT, "messages")

"""Requests to a router, and what comes back."""

import asyncio
import time

import grpc
import pytest

from kvmesh.errors import from_rpc_error
from kvmesh.v1 import generate_pb2 as pb
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode

SLOW = (("x-stub", "per_token=0.02"),)
"""Metadata: a stub node takes its time."""


@pytest.fixture
async def fleet():
    """Two nodes, which nothing may be left on."""
    async with running_fleet(StubNode("node-0"), StubNode("node-1")) as running:
        yield running
        await eventually(lambda: running.idle)
        running.app.ledger.check_integrity()


def request(text="hello", max_tokens=5, **fields):
    return pb.GenerateRequest(
        text=text, sampling=pb.SamplingParams(max_tokens=max_tokens), **fields
    )


async def answer(fleet, *args, **kwargs):
    return [frame async for frame in fleet.inference.Generate(*args, **kwargs)]


async def error(fleet, *args, **kwargs):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer(fleet, *args, **kwargs)
    return from_rpc_error(caught.value)


def text_of(frames):
    return "".join(delta.text for frame in frames for delta in frame.deltas)


async def rest_of(call, after=0, then=None):
    """The frames of `call` from here on; `then()` is called once `after` of them have come."""
    frames = []
    while (frame := await call.read()) is not grpc.aio.EOF:
        frames.append(frame)
        if len(frames) == after:
            then()
    return frames


async def no_more(count):
    """The value of `count()` once it has not changed for a while."""
    last, since = count(), time.monotonic()
    while time.monotonic() - since < 0.25:
        await asyncio.sleep(0.01)
        if count() != last:
            last, since = count(), time.monotonic()
    return last

"""Inference.Generate over real sockets."""

import pytest

from kvmesh.v1 import generate_pb2 as pb
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode


@pytest.fixture
async def fleet():
    async with running_fleet(StubNode("node-0"), StubNode("node-1")) as running:
        yield running


def request(text="hello", max_tokens=5, **fields):
    return pb.GenerateRequest(
        text=text, sampling=pb.SamplingParams(max_tokens=max_tokens), **fields
    )


async def answer(fleet, *args, **kwargs):
    return [frame async for frame in fleet.inference.Generate(*args, **kwargs)]


def text_of(frames):
    return "".join(delta.text for frame in frames for delta in frame.deltas)


async def test_streams_the_answer_with_route_first_and_summary_last(fleet):
    frames = await answer(fleet, request("hello", 7))
    assert text_of(frames) == "hellohe"
    route, summary = frames[0].route, frames[-1].summary
    assert route.node in ("node-0", "node-1")
    assert (route.prompt_tokens, route.attempt, route.policy) == (5, 1, "prefix-aware")
    assert route.reason == "least loaded of 2; no node holds the prefix"
    assert (summary.node, summary.usage.completion_tokens) == (route.node, 7)
    await eventually(lambda: fleet.idle)

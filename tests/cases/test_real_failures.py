"""Faults of real nodes, in processes of their own, with a real model: see the ids in the names."""

import asyncio
import random
from contextlib import asynccontextmanager

import grpc
import pytest
import pytest_asyncio

from bench.faulty_fleet import FaultyFleet
from bench.known_answers import Asker, Reply
from bench.random_model import write_random_model
from bench.requests import random_prompt
from kvmesh.packing import pack_tokens
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

PROMPT = pack_tokens(random_prompt(random.Random(3), 40))
FORMS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 8, "seed": 5},
    {"temperature": 1.0, "top_k": 8, "seed": 6, "n": 3},
]


def request(max_tokens, **sampling):
    params = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling)
    return pb.GenerateRequest(token_ids=PROMPT, sampling=params)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(smollm2, tmp_path_factory):
    model = write_random_model(tmp_path_factory.mktemp("model"), smollm2)
    async with FaultyFleet(model, 2, random.Random(1)).running() as running:
        yield running


@asynccontextmanager
async def connected(fleet):
    async with grpc.aio.insecure_channel(fleet.target) as channel:
        yield Asker(channel), fleet_pb2_grpc.FleetStub(channel)


async def nodes(stub):
    return (await stub.ListNodes(fleet_pb2.ListNodesRequest())).nodes


async def refused(stub):
    """The second node, once the router has refused it."""
    for _ in range(400):
        node = (await nodes(stub))[1]
        if node.health == fleet_pb2.NODE_HEALTH_REFUSED:
            return node
        await asyncio.sleep(0.05)
    raise AssertionError(node)


async def ask_while(asker, request, half):
    """The answer to `request`; tells `half` the node as soon as half of it has come."""
    reply = Reply()
    async for frame in asker.frames(request):
        reply.take(frame)
        if len(reply.samples[0].tokens) == request.sampling.max_tokens // 2:
            half(int(reply.nodes[0][-1]))
    return reply


@pytest.mark.parametrize("fault", ["kill", "freeze"])
async def test_r13_streams_go_on_with_the_right_tokens(fleet, fault):
    """Of each form two, so that each node has some of them when it is struck."""
    strikes = []

    def strike(place):
        if not strikes:
            work = fleet.kill(place) if fault == "kill" else fleet.freeze_for(place, 5.0)
            strikes.append(asyncio.create_task(work))

    requests = [request(300, **form) for form in FORMS * 2]
    async with connected(fleet) as (asker, stub):
        await fleet.until_up()
        known = [await asker.ask(each) for each in requests]
        calls = [asyncio.create_task(ask_while(asker, each, strike)) for each in requests]
        replies = await asyncio.gather(*calls)
        assert [r.problem(k) for r, k in zip(replies, known, strict=True)] == [None] * 6
        assert any(began != ended for began, ended in (reply.nodes for reply in replies))
        assert [node.in_flight for node in await nodes(stub)] == [0, 0]
    await asyncio.gather(*strikes)
    await fleet.until_up()
    for report in await fleet.checked():
        assert (list(report.violations), report.requests, report.held_blocks) == ([], 0, 0)


async def test_r6_a_cut_connection_costs_no_request_and_no_reservation(fleet):
    def cut(place):
        fleet.proxies[place].cut()

    asked = request(120, temperature=0.0)
    async with connected(fleet) as (asker, stub):
        await fleet.until_up()
        known = await asker.ask(asked)
        calls = [asyncio.create_task(ask_while(asker, asked, cut)) for _ in range(6)]
        for reply in await asyncio.gather(*calls):
            assert reply.problem(known) is None
        assert [node.in_flight for node in await nodes(stub)] == [0, 0]


async def test_d8_a_real_node_that_differs_is_refused_with_the_reason(fleet):
    await fleet.until_up()
    await fleet.replace(1, block_size=32, dtype="bfloat16")
    async with connected(fleet) as (asker, stub):
        odd = await refused(stub)
        assert "block_size is 32, the fleet's is 16" in odd.detail
        assert "dtype is bfloat16, the fleet's is float32" in odd.detail
        replies = [await asker.ask(request(4)) for _ in range(4)]
        assert {reply.nodes for reply in replies} == {("node-0", "node-0")}

"""What the router does about nodes that fail: see the ids in the names."""

import asyncio
import signal
import time
from collections import Counter

import grpc
import pytest

from kvmesh.packing import unpack_tokens
from kvmesh.v1 import fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from tests.router.asking import SLOW, answer, error, request, rest_of, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode
from tests.router.test_node_failures import processes

Code = grpc.StatusCode


async def metric(fleet, line):
    """The value of the metric whose line begins so."""
    lines = (await fleet.http.get("/metrics")).text.splitlines()
    found = [each for each in lines if each.startswith(f"kvmesh_router_{line}")]
    return float(found[0].rpartition(" ")[2]) if found else 0.0


async def fail(fleet, code, times):
    stub = (("x-stub", f"fail_before={code}"),)
    for _ in range(times):
        assert (await error(fleet, request(), metadata=stub)).code == Code[code]


async def test_r8_client_errors_in_a_row_keep_the_breaker_closed():
    async with running_fleet(StubNode()) as fleet:
        for code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"):
            stub = (("x-stub", f"fail_before={code}"),)
            for _ in range(10):
                await error(fleet, request(), metadata=stub)
        assert await metric(fleet, 'breaker{node="node-0",state="closed"}') == 1
        assert text_of(await answer(fleet, request())) == "hello"


async def test_r9_a_breaker_opens_lets_one_request_try_and_closes_after_successes():
    async with running_fleet(StubNode()) as fleet:
        await fail(fleet, "INTERNAL", 5)
        assert await metric(fleet, 'breaker{node="node-0",state="open"}') == 1
        refused = await error(fleet, request())
        assert refused.code == Code.UNAVAILABLE
        assert len(fleet.nodes[0].requests) == 5  # it was spared
        await eventually(lambda: fleet.breaker(0) == "half-open")
        await fail(fleet, "INTERNAL", 1)
        assert fleet.breaker(0) == "open"
        await eventually(lambda: fleet.breaker(0) == "half-open", 4)
        for _ in range(2):
            assert text_of(await answer(fleet, request())) == "hello"
        assert await metric(fleet, 'breaker{node="node-0",state="closed"}') == 1


async def test_r9_others_serve_while_a_breaker_is_open():
    nodes = [StubNode("node-0"), StubNode("node-1")]
    async with running_fleet(*nodes, policy="round-robin") as fleet:
        nodes[0].script = Script(fail_before="UNAVAILABLE")
        for _ in range(20):
            assert text_of(await answer(fleet, request())) == "hello"
        assert len(nodes[0].requests) == 5
        explained = await fleet.fleet.Explain(fleet_pb2.ExplainRequest(request=request()))
        assert {each.node for each in explained.route.candidates} == {"node-0", "node-1"}


async def test_the_retry_budget_bounds_what_a_fleet_in_trouble_gets():
    nodes = [StubNode(f"node-{i}", script=Script(full=True)) for i in range(3)]
    async with running_fleet(*nodes, retry_share=0.1) as fleet:
        start = time.monotonic()
        refusals = [await error(fleet, request()) for _ in range(120)]
        assert {each.code for each in refusals} == {Code.RESOURCE_EXHAUSTED}
        tried = sum(len(node.requests) for node in nodes)
        free = 100 + 10 * (time.monotonic() - start)  # those that were kept, and 10 a second
        assert 120 + 100 <= tried <= 120 + free + 12
        assert await metric(fleet, "retry_budget ") < 100


def tokens_of(frames):
    """The tokens of each sample, and how often it has ended."""
    tokens, ends = {}, Counter()
    for delta in (delta for frame in frames for delta in frame.deltas):
        tokens.setdefault(delta.index, []).extend(unpack_tokens(delta.token_ids))
        ends[delta.index] += delta.finish_reason != pb.FINISH_REASON_UNSPECIFIED
    return tokens, ends


async def test_r13_a_killed_node_is_not_seen_in_the_stream():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        async with running_fleet(up=2, addresses=addresses) as fleet:
            sampling = pb.SamplingParams(max_tokens=40, n=3)
            asked = pb.GenerateRequest(text="abcdefg", sampling=sampling)
            whole = tokens_of(await answer(fleet, asked))
            call = fleet.inference.Generate(asked, metadata=SLOW)
            first = await call.read()
            victim = started[int(first.route.node[-1])]
            frames = [first, *await rest_of(call, 7, lambda: victim.signal(signal.SIGKILL))]
            assert tokens_of(frames) == whole
            assert not any(frame.HasField("route") for frame in frames[1:])
            summary = frames[-1].summary
            assert summary.node != first.route.node
            assert summary.usage.completion_tokens == 3 * 40
            trailing = dict(await call.trailing_metadata())
            assert pb.Summary.FromString(trailing["kvmesh-usage-bin"]) == summary
            assert await metric(fleet, 'resumes_total{outcome="done"}') == 1
            await eventually(lambda: fleet.app.ledger.idle, 1)


async def test_r13_over_http_too():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        async with running_fleet(up=2, addresses=addresses, policy="round-robin") as fleet:
            body = {"prompt": "hello", "max_tokens": 500, "stream": True}
            seen = []
            async with fleet.http.stream("POST", "/v1/completions", json=body) as response:
                async for line in response.aiter_lines():
                    seen.append(line)
                    if len(seen) == 20:
                        victim = started[int(response.headers["x-kvmesh-node"][-1])]
                        victim.signal(signal.SIGKILL)
            assert seen[-2:] == ["data: [DONE]", ""]


async def test_r13_each_of_several_losses_is_made_good():
    nodes = [StubNode(f"node-{i}") for i in range(2)]
    async with running_fleet(*nodes) as fleet:
        often = (("x-stub", "fail_after=3 code=UNAVAILABLE"),)  # each node, after three frames
        frames = await answer(fleet, request("hello", 20), metadata=often)
        assert text_of(frames) == "hello" * 4
        attempts = [(each.attempt, len(each.resume)) for n in nodes for each in n.requests]
        assert sorted(attempts) == [(i, int(i > 1)) for i in range(1, 8)]


async def test_r13_a_node_that_comes_back_in_time_goes_on_with_its_own_streams():
    node = await StubNode(script=Script(per_token=0.02)).start()
    async with running_fleet(node) as fleet:
        call = fleet.inference.Generate(request("hello", 50))
        frames = [await call.read()]
        await node.stop()
        again = await StubNode().start(node.port)
        fleet.nodes.append(again)
        frames += await rest_of(call)
        assert text_of(frames) == "hello" * 10
        await eventually(lambda: fleet.idle, 1)


async def test_r13_without_another_node_the_client_is_told_what_was_lost():
    node = await StubNode(script=Script(per_token=0.02)).start()
    async with running_fleet(node, resume_timeout=0.3) as fleet:
        call = fleet.inference.Generate(request(max_tokens=100))
        await call.read()
        await node.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await rest_of(call)
        assert caught.value.code() == Code.UNAVAILABLE
        assert "node-0 was lost after" in caught.value.details()
        await eventually(lambda: fleet.idle, 1)
        assert await metric(fleet, 'resumes_total{outcome="failed"}') == 1


async def test_r13_a_request_that_takes_every_node_with_it_is_given_up():
    nodes = [StubNode(f"node-{i}") for i in range(5)]
    async with running_fleet(*nodes) as fleet:
        deadly = (("x-stub", "fail_before=UNAVAILABLE"),)
        assert (await error(fleet, request(), metadata=deadly)).code == Code.UNAVAILABLE
        assert sum(len(node.requests) for node in nodes) == 3


async def test_r13_a_node_lost_after_its_last_frame_is_not_missed():
    nodes = [StubNode(f"node-{i}") for i in range(2)]
    async with running_fleet(*nodes) as fleet:
        late = (("x-stub", "fail_after=5 code=UNAVAILABLE"),)
        call = fleet.inference.Generate(request("hello", 5), metadata=late, timeout=10)
        frames = await rest_of(call)
        assert (text_of(frames), await call.code()) == ("hello", Code.OK)
        assert sum(len(node.requests) for node in nodes) == 1
        trailing = dict(await call.trailing_metadata())
        assert pb.Summary.FromString(trailing["kvmesh-usage-bin"]) == frames[-1].summary


async def test_r13_best_of_starts_anew_since_nothing_was_sent():
    nodes = [StubNode(f"node-{i}", script=Script(prefill=0.2)) for i in range(2)]
    async with running_fleet(*nodes, policy="round-robin") as fleet:
        asked = pb.GenerateRequest(
            text="hi", sampling=pb.SamplingParams(max_tokens=4, n=1, best_of=2)
        )
        call = asyncio.create_task(answer(fleet, asked))
        await eventually(lambda: any(node.running for node in nodes))
        victim = next(node for node in nodes if node.running)
        await victim.stop()
        assert text_of(await call) == "hihi"


@pytest.mark.parametrize(
    ("limit", "script"),
    [
        ("connect_timeout", "wait=30"),
        ("first_token_timeout", "prefill=30"),
        ("token_timeout", "per_token=30"),
    ],
)
async def test_a_node_that_takes_too_long_is_left_for_another(limit, script):
    """The first request only: the node that goes on is not slow."""
    nodes = [StubNode(f"node-{i}") for i in range(2)]
    async with running_fleet(*nodes, **{limit: 0.3}) as fleet:
        name, _, seconds = script.partition("=")
        for node in nodes:
            node.script = Script(**{name: float(seconds)})
        work = asyncio.create_task(answer(fleet, request()))
        await eventually(lambda: any(node.running for node in nodes))
        for node in nodes:
            node.script = Script()
        start = time.monotonic()
        assert text_of(await work) == "hello"
        assert time.monotonic() - start < 3
        assert sorted(len(node.requests) for node in nodes) == [1, 1]
        await eventually(lambda: fleet.idle, 1)


async def test_a_client_that_reads_nothing_is_waited_for_no_longer_than_the_whole():
    node = StubNode()
    async with running_fleet(node, request_timeout=1.0) as fleet:
        big = (("x-stub", "padding=16384"),)
        stalled = fleet.inference.Generate(request(max_tokens=3000), metadata=big)
        await stalled.read()
        await eventually(lambda: fleet.app.admission.in_flight == 0, 3)
        await eventually(lambda: fleet.idle, 1)
        assert 0 < node.frames < 3000
        assert await metric(fleet, 'requests_total{code="DEADLINE_EXCEEDED"') == 1
        stalled.cancel()


async def test_a_silent_nodes_streams_wait_while_new_work_goes_elsewhere():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        limits = {"node_silence": 0.7, "stream_silence": 60.0}
        async with running_fleet(up=2, addresses=addresses, **limits) as fleet:
            call = fleet.inference.Generate(request("hello", 60), metadata=SLOW)
            frames = [await call.read()]
            place = int(frames[0].route.node[-1])
            started[place].signal(signal.SIGSTOP)
            await eventually(lambda: fleet.health(place) == "NODE_HEALTH_DOWN")
            others = {(await answer(fleet, request()))[0].route.node for _ in range(4)}
            assert others == {f"node-{1 - place}"}
            started[place].signal(signal.SIGCONT)
            frames += await rest_of(call)
            assert text_of(frames) == "hello" * 12
            assert frames[-1].summary.node == f"node-{place}"  # nobody took it away
            await eventually(lambda: fleet.health(place) == "NODE_HEALTH_UP")


async def test_a_dead_silent_nodes_streams_go_on_elsewhere():
    with processes("node-0", "node-1") as started:
        addresses = tuple(each.address for each in started)
        limits = {"node_silence": 0.5, "stream_silence": 1.0}
        async with running_fleet(up=2, addresses=addresses, **limits) as fleet:
            call = fleet.inference.Generate(request("hello", 60), metadata=SLOW)
            frames = [await call.read()]
            place = int(frames[0].route.node[-1])
            started[place].signal(signal.SIGSTOP)
            frames += await rest_of(call)
            assert text_of(frames) == "hello" * 12
            assert frames[-1].summary.node == f"node-{1 - place}"
            started[place].signal(signal.SIGCONT)
            await eventually(lambda: fleet.health(place) == "NODE_HEALTH_UP", 5)

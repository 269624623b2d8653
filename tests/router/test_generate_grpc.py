"""Inference over real sockets: answers, errors, and what crosses the router beside frames."""

import time

import grpc
import pytest
import structlog

from kvmesh.errors import from_rpc_error
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2
from router.placement import Placement
from tests.router.asking import answer, error, fleet, no_more, request, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

Code = grpc.StatusCode


__all__ = ["fleet"]


async def test_streams_the_answer_with_route_first_and_summary_last(fleet):
    frames = await answer(fleet, request("hello", 7))
    assert text_of(frames) == "hellohe"
    route, summary = frames[0].route, frames[-1].summary
    assert route.node in ("node-0", "node-1")
    assert (route.prompt_tokens, route.attempt, route.policy) == (5, 1, "prefix-aware")
    assert route.reason == "least loaded of 2; no node holds the prefix"
    assert (summary.node, summary.usage.completion_tokens) == (route.node, 7)


async def test_the_node_gets_a_fully_resolved_request(fleet):
    sent = request("hi", 3, request_id="my-id", priority=5, cache=pb.CACHE_MODE_OFF)
    frames = await answer(fleet, sent)
    seen = next(each for node in fleet.nodes for each in node.requests)
    assert (seen.request_id, seen.attempt, seen.priority) == ("my-id", 1, 5)
    assert unpack_tokens(seen.token_ids) == list(b"hi")
    assert seen.sampling.max_tokens == 3
    assert seen.sampling.HasField("seed")
    assert frames[0].route.seed == seen.sampling.seed
    assert seen.cache == pb.CACHE_MODE_OFF
    assert seen.epoch in [node.info.epoch for node in fleet.nodes]


async def test_an_unset_max_tokens_is_what_context_or_pool_leaves():
    async with running_fleet(StubNode(num_blocks=4)) as fleet:
        frames = await answer(fleet, pb.GenerateRequest(text="abc"))
        assert frames[-1].summary.usage.completion_tokens == 4 * 16 - 3


async def test_the_same_prompt_again_goes_where_its_prefix_is(fleet):
    prompt = "x" * 100
    first = await answer(fleet, request(prompt))
    place = int(first[0].route.node[-1])
    await eventually(lambda: fleet.app.view.nodes()[place].indexed_blocks == 6)
    for _ in range(5):
        await eventually(lambda: fleet.quiet)
        again = await answer(fleet, request(prompt))
        assert again[0].route.node == first[0].route.node
        assert again[0].route.reason == "longest prefix: 96 of 100 tokens"
        assert again[0].route.predicted_cached_tokens == 96
        assert again[-1].summary.usage.cached.gpu == 96
    await answer(fleet, request(prompt, cache=pb.CACHE_MODE_OFF))


async def test_explain_adds_the_candidates(fleet):
    frames = await answer(fleet, request(explain=True))
    names = [each.node for each in frames[0].route.candidates]
    assert sorted(names) == ["node-0", "node-1"]


async def test_chat_is_what_the_template_makes_of_it(fleet):
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")])
    frames = await answer(
        fleet, pb.GenerateRequest(chat=chat, sampling=pb.SamplingParams(max_tokens=1))
    )
    seen = next(each for node in fleet.nodes for each in node.requests)
    assert unpack_tokens(seen.token_ids) == [
        256, *b"user\nhi", 257, *b"\n", 256, *b"assistant\n",
    ]  # fmt: skip
    assert frames[0].route.prompt_tokens == len(seen.token_ids) // 4


async def test_what_is_not_served_says_so(fleet):
    refused = await error(fleet, request(adapter="a"))
    assert refused.code == Code.UNIMPLEMENTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await fleet.inference.Route(inference_pb2.RouteRequest())
    assert caught.value.code() == Code.UNIMPLEMENTED


async def test_a_second_request_of_the_same_id_is_refused_while_the_first_runs(fleet):
    for node in fleet.nodes:
        node.script = Script(per_token=0.01)
    first = fleet.inference.Generate(request(max_tokens=50, request_id="same"))
    await first.read()
    assert (await error(fleet, request(request_id="same"))).code == Code.ALREADY_EXISTS
    count = 1
    while await first.read() is not grpc.aio.EOF:
        count += 1
    assert count == 50
    await answer(fleet, request(request_id="same"))


async def test_tokenize_and_detokenize(fleet):
    reply = await fleet.inference.Tokenize(inference_pb2.TokenizeRequest(text="hé"))
    assert unpack_tokens(reply.token_ids) == list("hé".encode())
    assert (reply.count, reply.max_model_len) == (3, 4096)
    back = await fleet.inference.Detokenize(
        inference_pb2.DetokenizeRequest(token_ids=reply.token_ids)
    )
    assert back.text == "hé"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await fleet.inference.Detokenize(
            inference_pb2.DetokenizeRequest(token_ids=pack_tokens([300]))
        )
    assert from_rpc_error(caught.value).field == "token_ids"


async def test_metadata_crosses_both_ways_but_not_what_belongs_to_the_hop(fleet):
    call = fleet.inference.Generate(
        request(),
        metadata=(
            ("x-mine", "1"),
            ("x-mine-bin", b"\0\xff"),
            ("authorization", "Bearer secret"),
            ("kvmesh-lease-bin", b"forged"),
        ),
    )
    [frame async for frame in call]
    seen = next(each for node in fleet.nodes for each in node.metadata)
    assert (seen["x-mine"], seen["x-mine-bin"]) == ("1", b"\0\xff")
    assert "authorization" not in seen
    assert "kvmesh-lease-bin" not in seen
    initial, trailing = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
    assert initial["x-from-node"] == "initial"
    assert initial["kvmesh-admitted"] == "1"
    assert trailing["x-from-node-end"] == "trailing"
    assert pb.Summary.FromString(trailing["kvmesh-usage-bin"]).usage.completion_tokens == 5


async def test_a_nodes_status_comes_as_it_was_with_its_details(fleet):
    stub = (("x-stub", "fail_after=2 code=DATA_LOSS"),)
    refused = await error(fleet, request(max_tokens=9), metadata=stub)
    assert (refused.code, refused.message) == (Code.DATA_LOSS, "scripted in the middle")
    assert refused.retry_after == 0.5
    stub = (("x-stub", "fail_before=INVALID_ARGUMENT"),)
    assert (await error(fleet, request(), metadata=stub)).code == Code.INVALID_ARGUMENT
    assert sum(len(node.requests) for node in fleet.nodes) == 2  # neither was tried again


async def test_the_deadline_travels_and_ends_the_work(fleet):
    stub = (("x-stub", "prefill=30"),)
    start = time.monotonic()
    refused = await error(fleet, request(), metadata=stub, timeout=0.4)
    assert refused.code == Code.DEADLINE_EXCEEDED
    assert time.monotonic() - start < 1.5
    remaining = next(each for node in fleet.nodes for each in node.time_remaining)
    assert 0 < remaining < 0.41  # it counts in whole milliseconds
    await eventually(lambda: fleet.idle, 1)


async def test_without_a_deadline_the_routers_own_limit_holds():
    async with running_fleet(StubNode(), request_timeout=0.3) as fleet:
        refused = await error(fleet, request(), metadata=(("x-stub", "prefill=30"),))
        assert refused.code == Code.DEADLINE_EXCEEDED
        await eventually(lambda: fleet.idle, 1)


async def test_too_many_in_flight_get_resource_exhausted_with_a_time_to_come_back():
    async with running_fleet(StubNode(), max_in_flight=1) as fleet:
        slow = fleet.inference.Generate(request(), metadata=(("x-stub", "prefill=30"),))
        await eventually(lambda: fleet.nodes[0].running)
        refused = await error(fleet, request())
        assert refused.code == Code.RESOURCE_EXHAUSTED
        assert refused.retry_after > 0
        slow.cancel()
        await eventually(lambda: fleet.idle, 1)
        await answer(fleet, request())


async def test_a_stalled_reader_holds_its_own_stream_and_little_memory():
    async with running_fleet(StubNode()) as fleet:
        big = (("x-stub", "padding=16384"),)  # 3000 frames of 16 KiB: 48 MiB
        stalled = fleet.inference.Generate(request(max_tokens=3000), metadata=big)
        await stalled.read()
        node = fleet.nodes[0]
        sent = await no_more(lambda: node.frames)
        assert node.running
        assert sent * 16384 < 2 << 20  # all buffers between node and client together
        assert text_of(await answer(fleet, request())) == "hello"
        stalled.cancel()
        await eventually(lambda: fleet.idle, 1)


async def test_an_error_of_our_own_is_internal_with_an_id_and_logged_once(fleet, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(Placement, "choose", broken)
    with structlog.testing.capture_logs() as logs:
        refused = await error(fleet, request())
        answered = await fleet.http.post("/v1/completions", json={"prompt": "x"})
    assert refused.code == Code.INTERNAL
    assert "secret" not in refused.message
    assert answered.status_code == 500
    ids = [each["error_id"] for each in logs if each["event"] == "internal"]
    assert len(ids) == 2
    assert ids[0] in refused.message
    assert ids[1] in answered.json()["error"]["message"]


async def test_a_line_per_request_however_it_ends_and_never_a_prompt():
    async with running_fleet(StubNode("node-0"), log_requests=True) as fleet:
        with structlog.testing.capture_logs() as logs:
            await answer(fleet, request("confidential", request_id="good"))
            await error(fleet, request("confidential", request_id="bad", model="other"))
            call = fleet.inference.Generate(
                request("confidential", request_id="gone"), metadata=(("x-stub", "prefill=30"),)
            )
            await eventually(lambda: fleet.nodes[0].running)
            call.cancel()
            await eventually(lambda: fleet.idle, 1)
        lines = {each["request_id"]: each for each in logs if each["event"] == "request"}
        assert lines["good"]["code"] == "OK"
        assert (lines["good"]["node"], lines["good"]["completion_tokens"]) == ("node-0", 5)
        assert lines["bad"]["code"] == "INVALID_ARGUMENT"
        assert lines["gone"]["code"] == "CANCELLED"
        assert "confidential" not in str(logs)

"""What a router sees of a node, over real sockets and with the real model in float32."""

import asyncio

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from kvmesh.packing import pack_tokens
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import generate_pb2
from prefix_index.keys import block_keys, root_key
from tests.cache_node.live_node import collect, until, until_async
from tests.cache_node.mock_node import tokens

Code = grpc.StatusCode
STOP, LENGTH = generate_pb2.FINISH_REASON_STOP, generate_pb2.FINISH_REASON_LENGTH


@pytest.fixture(scope="session")
def tokenizer(smollm2) -> Tokenizer:
    return Tokenizer.from_directory(smollm2)


async def test_a_request_streams_its_tokens_text_and_account(live, tokenizer):
    prompt = tokenizer.encode("The capital of France is", False)
    call = live.call(prompt, max_tokens=6)
    assert dict(await call.initial_metadata())["kvmesh-admitted"] == "1"
    answer = await collect(call)
    assert (len(answer.tokens), answer.finish) == (6, LENGTH)
    assert answer.text == tokenizer.decode(answer.tokens)
    assert answer.summary.usage.prompt_tokens == len(prompt)
    assert answer.summary.usage.completion_tokens == 6
    assert answer.summary.node == "node-0"
    assert answer.summary.total_us >= answer.summary.prefill_us > 0
    trailing = dict(await call.trailing_metadata())
    assert generate_pb2.Summary.FromString(trailing["kvmesh-usage-bin"]) == answer.summary


async def test_a_shared_prefix_is_served_from_the_cache(live):
    prompt = tokens(64)
    cold = await live.generate(prompt + tokens(5, 1))
    warm = await live.generate(prompt + tokens(5, 1))
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 64)
    assert warm.tokens == cold.tokens
    off = await live.generate(prompt + tokens(5, 1), cache=generate_pb2.CACHE_MODE_OFF)
    assert (off.cached_tokens, off.tokens) == (0, cold.tokens)


async def test_tenants_with_other_salts_share_nothing(live):
    await live.generate(tokens(64), salt=b"a")
    assert (await live.generate(tokens(64), salt=b"b")).cached_tokens == 0
    assert (await live.generate(tokens(64), salt=b"a")).cached_tokens == 63


async def test_the_same_seed_gives_the_same_sample_and_another_gives_another(live):
    sampled = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 16}
    first = await live.generate(tokens(12), seed=7, **sampled)
    again, other = await asyncio.gather(
        live.generate(tokens(12), seed=7, **sampled), live.generate(tokens(12), seed=8, **sampled)
    )
    assert again.tokens == first.tokens
    assert other.tokens != first.tokens


async def test_a_stop_string_ends_the_text_before_it_and_never_leaks(live, tokenizer):
    prompt = tokenizer.encode("One, two, three, four,", False)
    whole = (await live.generate(prompt, max_tokens=16)).text
    stop = whole[5:9]
    answer = await live.generate(prompt, max_tokens=16, stop=[stop])
    assert answer.text == whole[: whole.index(stop)]
    assert (answer.finish, answer.stop_reason) == (STOP, stop)


async def test_stop_tokens_and_min_tokens(live):
    plain = await live.generate(tokens(8), max_tokens=10)
    third = plain.tokens[2]
    at = plain.tokens.index(third)
    stopped = await live.generate(tokens(8), max_tokens=10, stop_token_ids=[third])
    assert (stopped.tokens, stopped.finish) == (plain.tokens[: at + 1], STOP)
    longer = await live.generate(tokens(8), max_tokens=10, stop_token_ids=[third], min_tokens=5)
    assert len(longer.tokens) >= 5
    assert third not in longer.tokens[:4]


@pytest.mark.parametrize(
    ("prompt", "fields", "named"),
    [
        ([], {}, "prompt"),
        ([5] * 1024, {}, "prompt"),
        ([5], {"max_tokens": 1024}, "max_tokens"),
        ([5, 49_152], {}, "token_ids"),
        ([5], {"temperature": float("nan")}, "temperature"),
        ([5], {"temperature": -0.5}, "temperature"),
        ([5], {"top_p": 0.0}, "top_p"),
        ([5], {"min_p": 1.5}, "min_p"),
        ([5], {"stop": [""]}, "stop"),
        ([5], {"stop_token_ids": [70_000]}, "stop_token_ids"),
        ([5], {"min_tokens": 9}, "min_tokens"),
        ([5], {"n": 0}, "n"),
        ([5], {"request_id": "no spaces"}, "request_id"),
        ([5], {"priority": 101}, "priority"),
        ([5], {"cache": 99}, "cache"),
    ],
)
async def test_bad_input_is_refused_by_name_and_costs_nothing(live, prompt, fields, named):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate(prompt, **fields)
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert caught.value.details().startswith(f"{named}: ")
    detail = error_details_pb2.BadRequest()
    assert rpc_status.from_call(caught.value).details[0].Unpack(detail)
    assert detail.field_violations[0].field == named
    assert live.node.state.load.steps == 0


async def test_what_is_not_served_yet_says_so(live):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate([5], adapter="x")
    assert caught.value.code() is Code.UNIMPLEMENTED


async def test_metadata_that_a_router_takes_fits_the_node(live):
    metadata = [("x-long", "x" * 15_000)]
    request = pb.NodeGenerateRequest(request_id="x", token_ids=pack_tokens([5]))
    request.sampling.max_tokens = 1
    assert (await collect(live.stub.Generate(request, metadata=metadata))).finish == LENGTH


async def test_a_packed_prompt_of_odd_length_is_refused(live):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await collect(live.stub.Generate(pb.NodeGenerateRequest(request_id="x", token_ids=b"abc")))
    assert caught.value.code() is Code.INVALID_ARGUMENT


async def test_another_epoch_and_a_second_dispatch_are_refused(live):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate([5], epoch=1)
    assert caught.value.code() is Code.FAILED_PRECONDITION
    first = live.call(tokens(8), request_id="same", max_tokens=200)
    await first.initial_metadata()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate(tokens(8), request_id="same")
    assert caught.value.code() is Code.ALREADY_EXISTS
    second = await live.generate(tokens(8), request_id="same", attempt=2)
    assert len(second.tokens) == 8
    first.cancel()


async def test_r10_cancel_while_waiting_prefilling_and_decoding_releases_within_a_second(live):
    decoding = [live.call(tokens(8, i), max_tokens=900) for i in range(4)]
    for call in decoding:
        await call.read()
    waiting = live.call(tokens(900, 9), max_tokens=100)
    await waiting.initial_metadata()
    await until(lambda: live.node.state.load.waiting == 1)
    waiting.cancel()
    await until(lambda: live.node.service.num_open == 4, timeout=1.0)
    for call in decoding:
        call.cancel()
    await until(lambda: live.node.state.load.held_blocks == 0, timeout=1.0)
    prefilling = live.call(tokens(1000, 5), max_tokens=2)
    await until(lambda: live.node.state.load.running == 1)
    prefilling.cancel()
    await until(lambda: live.node.state.load.held_blocks == 0, timeout=1.0)


async def test_a_deadline_ends_the_work(live):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate(tokens(8), max_tokens=1000, timeout=0.5)
    assert caught.value.code() is Code.DEADLINE_EXCEEDED
    await until(lambda: live.node.state.load.held_blocks == 0, timeout=1.0)


async def test_a_full_node_says_when_to_come_back(live):
    calls = [live.call(tokens(8, i), max_tokens=500) for i in range(8)]
    for call in calls:
        await call.initial_metadata()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate(tokens(8, 99))
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    assert rpc_status.from_call(caught.value).details[0].Unpack(retry)
    for call in calls:
        call.cancel()


async def test_abort_ends_a_request_with_its_tokens_so_far_and_is_idempotent(live):
    call = live.call(tokens(8), request_id="gone", max_tokens=900)
    await call.read()
    assert (await live.stub.Abort(pb.AbortRequest(request_id="gone"))).found
    answer = await collect(call)
    assert answer.finish == generate_pb2.FINISH_REASON_ABORT
    assert not (await live.stub.Abort(pb.AbortRequest(request_id="gone"))).found


async def test_a_failing_step_ends_its_requests_and_the_node_lives(live, monkeypatch):
    run, failed = live.node.engine._executor.run, asyncio.Event()

    def broken(plan):
        failed.set()
        raise RuntimeError("out of luck")

    monkeypatch.setattr(live.node.engine._executor, "run", broken)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate(tokens(8))
    assert caught.value.code() is Code.INTERNAL
    assert failed.is_set()
    monkeypatch.setattr(live.node.engine._executor, "run", run)
    assert len((await live.generate(tokens(8))).tokens) == 8


async def test_a_draining_node_takes_nothing_new_and_finishes_what_it_has(live):
    running = live.call(tokens(8), max_tokens=20)
    await running.read()
    await live.stub.Drain(pb.DrainRequest())
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.generate(tokens(8))
    assert caught.value.code() is Code.UNAVAILABLE
    assert len((await collect(running)).tokens) == 19
    await live.stub.Drain(pb.DrainRequest(resume=True))
    assert len((await live.generate(tokens(8))).tokens) == 8


async def test_the_state_stream_starts_with_a_snapshot_and_goes_on_with_changes(live):
    await live.generate(tokens(64))
    watch = live.stub.WatchState(pb.WatchStateRequest(router_id="a", include_events=True))
    first = await watch.read()
    assert first.epoch == live.node.info.epoch
    assert first.events.snapshot
    assert first.load.evictable_blocks == 4
    await live.generate(tokens(64, 1), router_id="a", dispatch_sequence=5)
    seen = []

    async def told() -> bool:
        seen.append(await watch.read())
        return seen[-1].load.last_dispatch_sequence == 5 and seen[-1].load.evictable_blocks == 8

    await until_async(told)
    deltas = [state.events for state in seen if state.HasField("events")]
    assert deltas
    assert not any(delta.snapshot for delta in deltas)
    watch.cancel()


async def test_an_idle_node_shows_that_it_lives(live):
    watch = live.stub.WatchState(pb.WatchStateRequest(router_id="a"))
    async with asyncio.timeout(2.0):
        for _ in range(3):
            assert not (await watch.read()).HasField("events")
    watch.cancel()


async def test_a_watch_interval_out_of_range_is_refused(live):
    watch = live.stub.WatchState(pb.WatchStateRequest(interval=duration_pb2.Duration(seconds=60)))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watch.read()
    assert caught.value.code() is Code.INVALID_ARGUMENT


async def test_info_tells_the_sizes_and_hands_out_the_tokenizer(live, tokenizer):
    bare = await live.stub.Info(pb.InfoRequest())
    full = await live.stub.Info(pb.InfoRequest(include_tokenizer=True))
    assert not bare.tokenizer_files
    assert Tokenizer(dict(full.tokenizer_files)).encode("one two", False) == tokenizer.encode(
        "one two", False
    )
    assert (bare.max_model_len, bare.vocab_size, bare.dtype) == (1024, 49_152, "float32")
    assert bare.kv_bytes_per_token == 2 * 30 * 3 * 64 * 4


async def test_what_the_contract_has_and_this_version_not_answers_unimplemented(live):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.stub.PullBlocks(pb.PullBlocksRequest())
    assert caught.value.code() is Code.UNIMPLEMENTED


async def test_health_and_reflection(live):
    health = health_pb2_grpc.HealthStub(live.channel)
    for service in ("", "kvmesh.v1.CacheNode"):
        status = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert status.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(live.channel)
    listing = reflection.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    answer = await listing.read()
    names = {service.name for service in answer.list_services_response.service}
    assert "kvmesh.v1.CacheNode" in names


async def test_a_prefix_is_pinned_by_key_and_let_go(live):
    prompt = tokens(64, 3)
    await live.generate(prompt)
    info = live.node.info
    root = root_key(info.key_scheme, info.model_fingerprint, "", b"")
    keys = block_keys(root, pack_tokens(prompt), info.key_scheme.block_size)
    pinned = await live.stub.Pin(pb.PinRequest(pin_id="system", keys=[*keys, b"?" * 16]))
    assert pinned.blocks == 4
    assert (await live.stub.CheckIntegrity(pb.CheckIntegrityRequest())).held_blocks == 4
    released = await live.stub.Pin(pb.PinRequest(pin_id="system", release=True))
    again = await live.stub.Pin(pb.PinRequest(pin_id="system", release=True))
    assert (released.released, again.released) == (True, False)


async def test_a_cleared_cache_holds_what_is_pinned_or_in_use_and_nothing_else(live):
    pinned, other = tokens(64, 3), tokens(64, 4)
    for prompt in (pinned, other):
        await live.generate(prompt)
    info = live.node.info
    root = root_key(info.key_scheme, info.model_fingerprint, "", b"")
    keys = block_keys(root, pack_tokens(pinned), info.key_scheme.block_size)
    await live.stub.Pin(pb.PinRequest(pin_id="system", keys=keys))
    running = live.call(tokens(64, 5), max_tokens=400, ignore_eos=True)
    await running.read()
    watch = live.stub.WatchState(pb.WatchStateRequest(router_id="a", include_events=True))
    await watch.read()
    cleared = await live.stub.ClearCache(pb.NodeClearCacheRequest())
    assert cleared.cleared_blocks >= 4
    running.cancel()
    state = await watch.read()
    while not state.HasField("events"):  # routers hear of it
        state = await watch.read()
    watch.cancel()
    found = [(await live.generate(prompt)).cached_tokens for prompt in (pinned, other)]
    assert found == [63, 0]
    await live.stub.ClearCache(pb.NodeClearCacheRequest(pins=True))
    assert (await live.generate(pinned)).cached_tokens == 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "pin_id"),
        ({"pin_id": "p", "keys": [b"short"]}, "keys"),
        ({"pin_id": "p", "priority": 999}, "priority"),
    ],
)
async def test_a_wrong_pin_is_refused_by_name(live, fields, named):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await live.stub.Pin(pb.PinRequest(**fields))
    assert caught.value.code() is Code.INVALID_ARGUMENT
    assert caught.value.details().startswith(f"{named}: ")

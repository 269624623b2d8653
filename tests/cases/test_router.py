"""Router cases: see the ids in the names."""

import asyncio
import contextlib
import random
from collections import Counter

import grpc
import pytest

from kvmesh.packing import unpack_tokens
from kvmesh.v1 import fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from router.ledger import Ledger
from router.policy import Candidate
from router.prefix_aware import PrefixAware
from tests.router.asking import answer, error, request, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

SYSTEM_PROMPT = 512


def send(nodes, policy, ledger, count, *, prompt=540, output=64):
    """Routes `count` requests with one system prompt that run at the same time; counts by node."""
    chosen = Counter()
    holds = set()
    for number in range(count):
        changes = {name: ledger.since_report(name) for name in nodes}
        candidates = [
            Candidate(
                name,
                cached_gpu_tokens=SYSTEM_PROMPT if name in holds else 0,
                queued_prefill_tokens=changes[name].prefill_tokens,
                active_blocks=changes[name].blocks,
                requests=changes[name].requests,
            )
            for name in nodes
        ]
        node = policy.choose(prompt, candidates).candidate
        blocks = (prompt + output) // 16
        ledger.reserve(
            str(number),
            1,
            node.node,
            prefill_tokens=prompt - node.expected_tokens,
            blocks=blocks,
        )
        holds.add(node.node)
        chosen[node.node] += 1
    return chosen


def test_r1_a_shared_system_prompt_does_not_send_everything_to_one_node():
    nodes = ["a", "b", "c", "d"]
    chosen = send(nodes, PrefixAware(16, random.Random(1)), Ledger(), 100)
    assert set(chosen) == set(nodes)
    assert max(chosen.values()) <= 35


async def test_r1_over_sockets():
    nodes = [StubNode(f"node-{i}", script=Script(per_token=0.02)) for i in range(2)]
    async with running_fleet(*nodes) as fleet:
        prompts = ["s" * SYSTEM_PROMPT + f"user {i}" for i in range(20)]
        await asyncio.gather(*(answer(fleet, request(each, 20)) for each in prompts))
        assert min(len(node.requests) for node in nodes) >= 5


def test_r2_without_a_prefix_equally_loaded_nodes_share_the_work():
    nodes = [Candidate(name) for name in "abcd"]
    policy = PrefixAware(16, random.Random(7))
    chosen = Counter(policy.choose(100, nodes).candidate.node for _ in range(400))
    assert min(chosen.values()) > 60


def test_r2_a_small_difference_in_load_is_a_tie():
    nodes = [Candidate("a", active_blocks=100), Candidate("b", active_blocks=101)]
    policy = PrefixAware(16, random.Random(7))
    assert {policy.choose(1000, nodes).candidate.node for _ in range(50)} == {"a", "b"}


async def test_r3_a_restarted_node_has_nothing_cached():
    old = await StubNode("node-0").start()
    async with running_fleet(old) as fleet:
        await answer(fleet, request("x" * 64))
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks == 4)
        await old.stop()
        await eventually(lambda: not fleet.app.view.serving)
        assert fleet.app.view.nodes()[0].indexed_blocks == 0
        new = await StubNode("node-0").start(old.port)
        fleet.nodes.append(new)
        await eventually(lambda: fleet.app.view.serving, 5)
        frames = await answer(fleet, request("x" * 64))
        assert frames[0].route.predicted_cached_tokens == 0
        assert new.requests[0].epoch == new.info.epoch > old.info.epoch


async def test_r6_counts_stay_right_while_a_node_flaps():
    flapping = await StubNode("node-0", script=Script(per_token=0.01)).start()
    port = flapping.port
    async with running_fleet(flapping, StubNode("node-1")) as fleet:
        calls = []
        for _ in range(3):
            calls += [asyncio.create_task(outcome(fleet)) for _ in range(10)]
            await asyncio.sleep(0.05)
            await flapping.stop()
            await eventually(lambda: fleet.health(0) == "NODE_HEALTH_DOWN")
            fleet.app.ledger.check_integrity()
            flapping = await StubNode("node-0", script=Script(per_token=0.01)).start(port)
            fleet.nodes.append(flapping)
            await eventually(lambda: fleet.health(0) == "NODE_HEALTH_UP", 5)
        outcomes = Counter(await asyncio.gather(*calls))
        assert set(outcomes) <= {"OK", "UNAVAILABLE"}
        await eventually(lambda: fleet.idle)
        fleet.app.ledger.check_integrity()
        assert [node.in_flight for node in fleet.app.view.nodes()] == [0, 0]


async def outcome(fleet):
    call = fleet.inference.Generate(request(max_tokens=20))
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return (await call.code()).name


# The script of a node for each phase in which a client may leave, and how to see that it is there.
PHASES = {
    "waiting": (Script(wait=30), lambda node: node.running),
    "prefilling": (Script(prefill=30), lambda node: node.running),
    "decoding": (Script(per_token=0.02), lambda node: node.frames > 2),
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("how", ["cancel", "connection lost", "http", "http stream"])
async def test_r10_a_client_that_leaves_frees_node_and_router(phase, how):
    script, reached = PHASES[phase]
    async with running_fleet(StubNode(script=script)) as fleet:
        node = fleet.nodes[0]
        work = asyncio.create_task(client(fleet, how))
        await eventually(lambda: reached(node))
        if how == "connection lost":
            await fleet.channel.close()
        work.cancel()
        await eventually(lambda: node.cancelled == 1 and fleet.idle, 1)
        fleet.app.ledger.check_integrity()
        metrics = (await fleet.http.get("/metrics")).text
        assert 'code="CANCELLED"' in metrics


async def client(fleet, how):
    if how.startswith("http"):
        body = {"prompt": "hi", "max_tokens": 1000, "stream": how == "http stream"}
        async with fleet.http.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                pass
    else:
        await answer(fleet, request(max_tokens=1000))


async def test_r10_while_waiting_for_another_node():
    """The first node has refused, the second does not answer yet."""
    full = StubNode("full", script=Script(full=True))
    slow = StubNode("slow", script=Script(prefill=30))
    async with running_fleet(full, slow, policy="round-robin") as fleet:
        work = asyncio.create_task(answer(fleet, request()))
        await eventually(lambda: slow.running)
        work.cancel()
        await eventually(lambda: fleet.idle, 1)
        assert not slow.running
        assert work.cancelled()


async def test_r11_chat_and_its_own_text_have_the_same_keys():
    async with running_fleet(StubNode()) as fleet:
        messages = [{"role": "user", "content": "z" * 60}]
        body = {"messages": messages, "max_tokens": 1}
        await fleet.http.post("/v1/chat/completions", json=body)
        await eventually(lambda: fleet.app.view.nodes()[0].indexed_blocks > 0)
        text = f"<|im_start|>user\n{'z' * 60}<|im_end|>\n<|im_start|>assistant\n"
        frames = await answer(fleet, request(text, 1))
        assert frames[0].route.predicted_cached_tokens >= 64
        first, second = (unpack_tokens(each.token_ids) for each in fleet.nodes[0].requests)
        assert first == second


async def test_a1_a_prompt_larger_than_every_pool_is_refused_at_once():
    async with running_fleet(StubNode("a", num_blocks=4), StubNode("b", num_blocks=8)) as fleet:
        refused = await error(fleet, request("x" * 128, 1))
        assert (refused.code.name, refused.field) == ("INVALID_ARGUMENT", "prompt")
        refused = await error(fleet, request("x" * 100, 29))
        assert (refused.code.name, refused.field) == ("INVALID_ARGUMENT", "max_tokens")
        assert not any(node.requests for node in fleet.nodes)
        assert text_of(await answer(fleet, request("x" * 10, 2))) == "xx"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("block_size", 32),
        ("dtype", "bfloat16"),
        ("kv_cache_dtype", "int8"),
        ("model_fingerprint", b"another"),
        ("model", "other"),
    ],
)
async def test_d8_a_node_that_differs_is_refused_with_the_reason(field, value):
    sound, odd = StubNode("node-0"), StubNode("node-1", changes={field: value})
    async with running_fleet(sound, odd, up=1) as fleet:
        refused = fleet_pb2.NODE_HEALTH_REFUSED
        await eventually(lambda: refused in [node.health for node in fleet.app.view.nodes()])
        status = next(n for n in fleet.app.view.nodes() if n.health == refused)
        assert field in status.detail
        assert isinstance(await answer(fleet, request()), list)
        await eventually(lambda: fleet.idle)


async def test_d8_a_key_scheme_that_is_not_ours_is_refused_even_from_the_first_node():
    async with running_fleet(StubNode(changes={"version": 2}), up=0) as fleet:
        await eventually(lambda: fleet.health(0) == "NODE_HEALTH_REFUSED")
        assert "key_scheme.version" in fleet.app.view.nodes()[0].detail
        assert (await error(fleet, request())).code.name == "UNAVAILABLE"


async def test_d8_a_name_can_be_had_once():
    async with running_fleet(StubNode("twin"), StubNode("twin"), up=1) as fleet:
        refused = fleet_pb2.NODE_HEALTH_REFUSED
        await eventually(lambda: refused in [node.health for node in fleet.app.view.nodes()])
        assert text_of(await answer(fleet, request())) == "hello"


async def test_f5_a_metric_that_breaks_breaks_no_stream(monkeypatch):
    async with running_fleet(StubNode()) as fleet:
        for name in ("_routed", "_ttft", "_completion", "_requests", "_tokenize"):
            monkeypatch.setattr(fleet.app.metrics, name, None)
        assert text_of(await answer(fleet, request())) == "hello"


async def test_r7_admission_opens_again_without_an_event():
    async with running_fleet(StubNode(), max_in_flight=2) as fleet:
        fleet.nodes[0].script = Script(per_token=0.02)
        slow = [asyncio.create_task(answer(fleet, request(max_tokens=10))) for _ in range(2)]
        await eventually(lambda: len(fleet.nodes[0].running) == 2)
        assert (await error(fleet, request())).code.name == "RESOURCE_EXHAUSTED"
        await asyncio.gather(*slow)
        assert isinstance((await answer(fleet, request()))[0], pb.GenerateResponse)

"""What the router tells operators of itself: rates, and the last requests."""

import json

import grpc
from google.protobuf.json_format import MessageToDict

from kvmesh.v1 import cache_node_pb2, fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from router.plain_json import EXACT, to_json
from router.rates import Rates
from router.registry import Registry
from router.request_log import KEPT, RequestLog
from tests.router.admission_fixture import tenants_file, who
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode


async def overview(fleet):
    return await fleet.fleet.Overview(fleet_pb2.OverviewRequest())


def load(prompt, hit, output):
    return cache_node_pb2.NodeLoad(queried_tokens=prompt, hit_tokens=hit, output_tokens=output)


async def test_rates_are_means_of_ten_seconds_and_start_again_with_a_node():
    now = 0.0
    registry = Registry(["a:1"])
    (node,) = registry.nodes
    rates = Rates(registry, lambda: now)

    def run(seconds, **speeds):
        nonlocal now
        for _ in range(seconds):
            now += 1.0
            before = node.load
            node.load = load(
                before.queried_tokens + speeds.get("prompt", 0),
                before.hit_tokens + speeds.get("hit", 0),
                before.output_tokens + speeds.get("output", 0),
            )
            rates.pass_time(1.0)

    run(2)  # before the first report
    node.epoch, node.load = 1, load(1_000_000, 0, 1_000_000)  # from before this router
    registry.set_health(node, fleet_pb2.NODE_HEALTH_UP)
    run(2, prompt=100, hit=50, output=10)
    read = rates.of(node)
    assert (read.prompt_tokens, read.hit_tokens, read.output_tokens) == (100, 50, 10)
    run(10, output=20)
    assert (rates.of(node).output_tokens, rates.of(node).prompt_tokens) == (20, 0)
    registry.set_health(node, fleet_pb2.NODE_HEALTH_DOWN)
    run(1)
    assert rates.of(node).output_tokens == 0
    node.epoch, node.load = 2, load(0, 0, 5)
    registry.set_health(node, fleet_pb2.NODE_HEALTH_UP)
    run(4, output=7)
    assert rates.of(node).output_tokens == 7
    await registry.close()


async def test_the_story_of_a_request_that_was_retried_and_went_on_elsewhere(tmp_path):
    tenants = tenants_file(tmp_path, acme={})
    nodes = (StubNode("node-0"), StubNode("node-1"))
    async with running_fleet(*nodes, policy="round-robin", tenants=tenants) as fleet:
        nodes[0].script = Script(fail_after=3, code="UNAVAILABLE")
        sent = request("hello", 6)
        sent.request_id = "moved"
        for _ in range(2):  # one of them begins at node-0
            await answer(fleet, sent, metadata=who("acme"))
        ended = (await overview(fleet)).requests
        assert [each.code for each in ended] == ["OK", "OK"]
        moved = next(each for each in ended if each.route.node == "node-0")
        assert (moved.request_id, moved.endpoint, moved.tenant) == ("moved", "generate", "acme")
        assert (moved.route.node, moved.summary.node, moved.resumes) == ("node-0", "node-1", 1)
        assert 0 < moved.ttft_us <= moved.total_us
        assert moved.route.reason


async def test_failures_are_there_with_what_was_wrong_and_no_prompt():
    async with running_fleet(StubNode()) as fleet:
        secret = "do not tell"
        call = fleet.inference.Generate(pb.GenerateRequest(text=secret, priority=101))
        assert (await call.code()) is grpc.StatusCode.INVALID_ARGUMENT
        gone = fleet.inference.Generate(request(secret, 400), metadata=(("x-stub", "wait=9"),))
        await eventually(lambda: fleet.nodes[0].running)
        gone.cancel()
        await eventually(lambda: fleet.idle)
        reply = await overview(fleet)
        newest, oldest = reply.requests
        assert (newest.code, oldest.code) == ("CANCELLED", "INVALID_ARGUMENT")
        assert "priority" in oldest.error
        assert secret.encode() not in reply.SerializeToString()


async def test_what_a_client_writes_steers_no_terminal():
    hostile = "\x1b]0;title\x07\x1b[2Jred\r\n\u202edone"
    async with running_fleet(StubNode()) as fleet:
        call = fleet.inference.Generate(pb.GenerateRequest(text="abc", request_id=hostile))
        assert (await call.code()) is grpc.StatusCode.INVALID_ARGUMENT
        (told,) = (await overview(fleet)).requests
        assert told.request_id == r"\x1b]0;title\x07\x1b[2Jred\r\n\u202edone"


def test_the_last_requests_are_kept_and_what_a_client_makes_long_is_cut():
    kept = RequestLog(enabled=False)
    for place in range(KEPT + 10):
        with kept.entry("chat", pb.GenerateRequest(request_id=f"{place}-" + "x" * 10_000), ""):
            pass
    assert len(kept.last) == KEPT
    assert kept.last[-1].request_id.startswith(f"{KEPT + 9}-x")
    assert len(kept.last[-1].request_id) == 128


async def test_a_full_fleet_shows_who_waits_by_class():
    node = StubNode("node-0", num_blocks=16, script=Script(per_token=0.5))
    async with running_fleet(node) as fleet:
        calls = [fleet.inference.Generate(request("x" * 32, 200))]
        await eventually(lambda: node.running)
        for priority in (0, 5):
            waiting = request("x" * 32, 200, priority=priority)
            calls.append(fleet.inference.Generate(waiting))
        await eventually(lambda: len(fleet.app._admitting.queue) == 2)
        reply = await overview(fleet)
        waiting = {each.priority: each.waiting for each in reply.queue}
        assert waiting == {"high": 1, "normal": 1, "low": 0}
        assert reply.queue[0].oldest_us > 0
        assert reply.in_flight == 3
        for call in calls:
            call.cancel()


async def test_as_json_it_is_what_protobuf_says_and_numbers_are_exact_in_a_browser():
    async with running_fleet(StubNode()) as fleet:
        await answer(fleet, request("hello", 2))
        message = fleet.app._overview.read()
        message.nodes[0].epoch = EXACT + 1
        ours = json.loads(to_json(message))
        theirs = MessageToDict(
            message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
        )
        assert as_numbers(ours) == as_numbers(theirs)
        assert ours["nodes"][0]["epoch"] == str(EXACT + 1)
        assert ours["requests"][0]["route"]["prompt_tokens"] == 5


def as_numbers(value):
    """JSON in which numbers are numbers, whether they came as such or as strings."""
    if isinstance(value, dict):
        return {name: as_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [as_numbers(each) for each in value]
    return int(value) if isinstance(value, str) and value.isdigit() else value

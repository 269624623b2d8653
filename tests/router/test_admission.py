"""What a router refuses, what it lets wait, and what it tells about both, over sockets."""

import asyncio

import grpc
import pytest
import structlog

from kvmesh.v1 import fleet_pb2
from kvmesh.v1 import generate_pb2 as pb
from tests.router.admission_fixture import metric, tenants_file, waiting, who
from tests.router.asking import answer, error, request, text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import Script, StubNode

Code = grpc.StatusCode
COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
FULL = Script(prefill=30)  # whoever is there stays


def http(fleet, key=None, **body):
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return fleet.http.post("/v1/completions", json=COMPLETION | body, headers=headers)


async def eventually_waiting(fleet, count):
    for _ in range(400):
        if await waiting(fleet) == count:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{await waiting(fleet)} wait, not {count}")


def start(fleet, *args, **kwargs):
    return asyncio.create_task(answer(fleet, *args, **kwargs))


async def test_only_tenants_get_in_and_their_keys_go_no_further(tmp_path):
    tenants = tenants_file(tmp_path, acme={})
    async with running_fleet(StubNode(), tenants=tenants, log_requests=True) as fleet:
        with structlog.testing.capture_logs() as logs:
            for metadata in ((), who("nobody")):
                refused = await error(fleet, request(), metadata=metadata)
                assert refused.code == Code.UNAUTHENTICATED
                assert "authorization: bearer key" in refused.message.lower()
            for response in (await http(fleet), await http(fleet, "key-nobody")):
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert response.json()["error"]["code"] == "unauthenticated"
            for call in (
                fleet.fleet.Explain(fleet_pb2.ExplainRequest(request=request())),
                fleet.inference.Tokenize(request=b""),
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() == Code.UNAUTHENTICATED
            assert fleet.nodes[0].requests == []
            assert text_of(await answer(fleet, request(), metadata=who("acme"))) == "hello"
            assert (await http(fleet, "key-acme")).status_code == 200
        assert "key-" not in str(logs)
        assert "authorization" not in fleet.nodes[0].metadata[0]


async def test_a_rate_is_told_by_name_with_the_time_to_come_back(tmp_path):
    limits = {"requests_per_second": 0.1, "burst_seconds": 20}
    tenants = tenants_file(tmp_path, acme=limits, zeta={})
    async with running_fleet(StubNode(), tenants=tenants) as fleet:
        for _ in range(2):
            await answer(fleet, request(), metadata=who("acme"))
        refused = await error(fleet, request(), metadata=who("acme"))
        assert refused.code == Code.RESOURCE_EXHAUSTED
        assert refused.message.startswith("requests_per_second: tenant acme is at its limit of 0.1")
        assert 9 < refused.retry_after <= 10
        response = await http(fleet, "key-acme")
        assert (response.status_code, response.headers["retry-after"]) == (429, "10")
        assert response.json()["error"]["type"] == "rate_limit_error"
        await answer(fleet, request(), metadata=who("zeta"))
        assert await metric(fleet, "refused_total", reason="requests_per_second") == 2


async def test_tokens_are_paid_as_they_were_used(tmp_path):
    tenants = tenants_file(tmp_path, acme={"tokens_per_second": 1, "burst_seconds": 1000})
    async with running_fleet(StubNode(), tenants=tenants) as fleet:
        for _ in range(3):  # each may use 5 + 250, and uses 5 + 1
            await answer(fleet, request("hello", 250), metadata=(*who("acme"), ("x-stub", "")))
            await answer(fleet, request("hello", 1), metadata=who("acme"))
        refused = await error(fleet, request("x" * 600, 1), metadata=who("acme"))
        assert refused.message.startswith("tokens_per_second: tenant acme is at its limit of 1")
        assert refused.retry_after > 300


async def test_concurrency_counts_what_runs_and_each_prompt_of_several(tmp_path):
    tenants = tenants_file(tmp_path, acme={"concurrency": 2})
    async with running_fleet(StubNode(script=FULL), tenants=tenants) as fleet:
        response = await http(fleet, "key-acme", prompt=["a", "b", "c"])
        assert response.status_code == 429
        running = [start(fleet, request(), metadata=who("acme")) for _ in range(2)]
        await eventually(lambda: len(fleet.nodes[0].running) == 2)
        refused = await error(fleet, request(), metadata=who("acme"))
        assert refused.message.startswith("concurrency: tenant acme is at its limit of 2")
        running[0].cancel()
        await eventually(lambda: len(fleet.nodes[0].running) == 1)
        again = start(fleet, request(), metadata=who("acme"))
        await eventually(lambda: len(fleet.nodes[0].running) == 2)
        for each in (*running, again):
            each.cancel()
        await eventually(lambda: fleet.idle)


async def test_a_tenant_has_no_priority_above_its_own(tmp_path):
    tenants = tenants_file(tmp_path, acme={"max_priority": 0})
    async with running_fleet(StubNode(), tenants=tenants) as fleet:
        refused = await error(fleet, request(priority=1), metadata=who("acme"))
        assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, "priority")
        assert "at most 0 for tenant acme, is 1" in refused.message


async def test_however_many_come_from_one_tenant_another_finds_a_place(tmp_path):
    tenants = tenants_file(tmp_path, greedy={}, modest={})
    node = StubNode(script=FULL)
    async with running_fleet(node, tenants=tenants, max_in_flight=16) as fleet:
        greedy = [start(fleet, request(), metadata=who("greedy")) for _ in range(20)]
        await eventually(lambda: sum(each.done() for each in greedy) == 6)
        modest = start(fleet, request(request_id="mine"), metadata=who("modest"))
        await eventually(lambda: ("mine", 1) in node.running)
        refused = [each.exception() for each in greedy if each.done()]
        assert [each.code() for each in refused] == [Code.RESOURCE_EXHAUSTED] * 6
        for each in (*greedy, modest):
            each.cancel()
        await asyncio.gather(*greedy, modest, return_exceptions=True)


@pytest.fixture
async def full():
    """A fleet whose one node is full: pool of 8 blocks, a request of 6 runs."""
    async with running_fleet(StubNode(num_blocks=8, script=FULL), max_queue=2) as fleet:
        first = start(fleet, request("x" * 80, 16, request_id="first"))
        await eventually(lambda: ("first", 1) in fleet.nodes[0].running)
        fleet.nodes[0].script = Script()
        fleet.end_first = first.cancel
        yield fleet
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(lambda: fleet.idle)
        assert await waiting(fleet) == 0


BIG = "x" * 64


async def test_what_does_not_fit_waits_and_starts_when_there_is_room(full):
    second = start(full, request(BIG, 16))
    await eventually_waiting(full, 1)
    assert await metric(full, "queue_depth", priority="normal", reason="blocks") == 1
    assert await metric(full, "committed_blocks") == 6
    passes = answer(full, request("hi", 2))
    assert text_of(await asyncio.wait_for(passes, 2)) == "hi"
    full.end_first()
    frames = await asyncio.wait_for(second, 1)
    assert len(text_of(frames)) == 16
    route = frames[0].route
    assert 0 < route.queue_us <= route.router_us
    assert await metric(full, "admission_seconds_count", outcome="started") == 3


async def test_more_than_the_queue_holds_come_back_later(full):
    held = [start(full, request(BIG, 16)) for _ in range(2)]
    await eventually_waiting(full, 2)
    refused = await error(full, request(BIG, 16))
    assert refused.code == Code.RESOURCE_EXHAUSTED
    assert "the queue is full with 2 requests" in refused.message
    assert refused.retry_after >= 1
    response = await http(full, prompt=BIG, max_tokens=16)
    assert response.status_code == 429
    assert int(response.headers["retry-after"]) >= 1
    assert await metric(full, "refused_total", reason="queue_full") == 2
    full.end_first()
    await asyncio.gather(*held)


async def test_a_higher_class_goes_first(full):
    low = start(full, request(BIG, 16, priority=-1, request_id="low"))
    await eventually_waiting(full, 1)
    high = start(full, request(BIG, 16, priority=1, request_id="high"))
    await eventually_waiting(full, 2)
    assert await metric(full, "queue_position_count", priority="low") == 1
    full.nodes[0].script = Script(per_token=0.005)
    full.end_first()
    await asyncio.gather(low, high)
    assert [each.request_id for each in full.nodes[0].requests] == ["first", "high", "low"]


async def test_one_that_cannot_start_before_its_deadline_is_never_sent(full):
    refused = await error(full, request(BIG, 16), timeout=0.4)
    assert refused.code == Code.RESOURCE_EXHAUSTED
    assert "cannot start in time" in refused.message
    assert refused.retry_after >= 1
    assert await metric(full, "refused_total", reason="too_late") == 1
    full.end_first()
    assert text_of(await answer(full, request("hi", 2))) == "hi"
    assert [len(each.token_ids) // 4 for each in full.nodes[0].requests] == [80, 2]


async def test_nobody_waits_for_longer_than_the_queue_timeout():
    node = StubNode(num_blocks=8, script=FULL)
    async with running_fleet(node, queue_timeout=0.1) as fleet:
        first = start(fleet, request(BIG, 16))
        await eventually(lambda: node.running)
        response = await http(fleet, prompt=BIG, max_tokens=16)
        assert response.status_code == 429
        assert "waited 0.1" in response.json()["error"]["message"]
        first.cancel()


async def test_a_fleet_that_goes_is_unavailable_for_those_who_wait(full):
    work = [start(full, request(BIG, 16)) for _ in range(2)]
    await eventually_waiting(full, 2)
    await full.nodes[0].stop()
    for outcome in await asyncio.gather(*work, return_exceptions=True):
        assert outcome.code() == Code.UNAVAILABLE
    response = await http(full)
    assert response.status_code == 503
    assert "retry-after" not in response.headers


async def test_a_route_says_what_would_never_fit():
    async with running_fleet(StubNode(num_blocks=8)) as fleet:
        sampling = pb.SamplingParams(max_tokens=40, n=4)
        refused = await error(fleet, pb.GenerateRequest(text="x" * 40, sampling=sampling))
        assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, "n")
        assert "need 14 blocks, the largest node has 8" in refused.message

"""Leases: the client streams straight from a node, and the router gets every reservation back."""

import asyncio

import grpc
import pytest

from kvmesh.client import Client, RequestError
from kvmesh.errors import Code, from_rpc_error
from kvmesh.packing import pack_tokens
from tests.router.admission_fixture import tenants_file
from tests.router.asking import text_of
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.lease_fixture import KEY, count, key_file, route, stream
from tests.router.stub_node import Script, StubNode

__all__ = ["key_file"]


@pytest.fixture
async def fleet(key_file):
    nodes = [StubNode(f"node-{i}", lease_key=KEY) for i in range(2)]
    async with running_fleet(*nodes, fleet_key_file=key_file, lease_time=3.0) as running:
        yield running
        # One whose client left before it came lives until it expires.
        await eventually(lambda: running.idle and running.app.leases.open == 0, 5)
        running.app.ledger.check_integrity()


async def use(fleet, work, **options):
    """Runs blocking `work(client)` off the router's event loop."""

    def run():
        with Client(fleet.target, timeout=20, direct=True, **options) as client:
            return work(client)

    return await asyncio.to_thread(run)


async def test_a_lease_is_all_that_the_node_needs(fleet):
    lease = await route(fleet, "abc", 4)
    assert lease.route.node in ("node-0", "node-1")
    assert lease.expires_in.ToSeconds() == fleet.app.leases.seconds
    assert (fleet.app.ledger.in_flight(lease.route.node), fleet.app.admission.in_flight) == (1, 1)
    frames = await stream(lease)
    assert text_of(frames) == "abca"
    await eventually(lambda: fleet.idle)
    assert [count(fleet, event) for event in ("granted", "claimed", "ended")] == [1, 1, 1]
    assert lease.dispatch.sampling.HasField("seed")
    assert lease.dispatch.epoch == next(
        node.info.epoch for node in fleet.nodes if node.name == lease.route.node
    )


async def test_while_it_runs_it_holds_its_place_and_usage_is_counted(fleet):
    lease = await route(fleet, "abc", 40)
    running = asyncio.create_task(stream(lease, (("x-stub", "per_token=0.01"),)))
    await eventually(lambda: count(fleet, "claimed") == 1)
    assert fleet.app.ledger.in_flight(lease.route.node) == 1
    await running
    await eventually(lambda: fleet.idle)
    assert fleet.app.metrics.registry.get_sample_value(
        "kvmesh_router_completion_tokens_total"
    ) == 40  # fmt: skip


async def test_leases_count_against_the_routers_limit(key_file):
    async with running_fleet(
        StubNode(lease_key=KEY), fleet_key_file=key_file, max_in_flight=2
    ) as fleet:
        held = [await route(fleet, "abc"), await route(fleet, "abc")]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await route(fleet, "abc")
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED
        await stream(held[0])
        await eventually(lambda: fleet.app.admission.in_flight == 1)
        await stream(await route(fleet, "abc"))
        await stream(held[1])
        await eventually(lambda: fleet.idle)


async def test_a_node_that_is_lost_gives_its_leases_back(fleet):
    lease = await route(fleet, "abc", 1000)
    running = asyncio.create_task(stream(lease, (("x-stub", "per_token=0.02"),)))
    await eventually(lambda: count(fleet, "claimed") == 1)
    await fleet.nodes[int(lease.route.node[-1])].stop()
    with pytest.raises(grpc.aio.AioRpcError):
        await running
    await eventually(lambda: fleet.idle and count(fleet, "lost") == 1, 5)


async def test_what_ended_between_two_state_streams_is_given_back(fleet):
    """A router that opens another stream learns from its first state what still runs."""
    leases = [await route(fleet, f"abc{i}") for i in range(2)]
    for lease in leases:
        fleet.app.leases.apply(lease.route.node, _claimed(lease))
    assert count(fleet, "claimed") == 2
    state = _claimed(leases[0])
    state.all_leases = True
    fleet.app.leases.apply(leases[0].route.node, state)
    other = leases[1]
    fleet.app.leases.apply(other.route.node, type(state)(all_leases=True))
    assert fleet.app.leases.open == (1 if other.route.node != leases[0].route.node else 0)
    fleet.app.leases.lost(leases[0].route.node)
    assert fleet.app.ledger.idle


def _claimed(lease):
    from kvmesh.v1 import cache_node_pb2 as pb

    report = pb.LeaseReport(request_id=lease.dispatch.request_id, attempt=lease.dispatch.attempt)
    return pb.NodeState(leases=[report])


async def test_the_client_streams_from_the_node_by_itself(fleet):
    events = await use(fleet, lambda client: list(client.generate("abc", max_tokens=4)))
    assert "".join(event.text for event in events) == "abca"
    done = await use(fleet, lambda client: client.generate("abc", max_tokens=3, seed=9).result())
    assert (done.text, done.finish_reason, done.route.seed) == ("abc", "length", 9)
    assert done.usage.completion_tokens == 3
    assert all("kvmesh-lease-bin" in node.metadata[0] for node in fleet.nodes if node.metadata)
    assert count(fleet, "granted") == 2


async def test_what_was_iterated_is_not_asked_for_again(fleet):
    def work(client):
        whole = client.generate("abc", max_tokens=4)
        assert len(list(whole)) == 4
        part = client.generate("abc", max_tokens=4)
        assert next(iter(part)).text == "a"
        return whole.result(), part.result()

    assert [done.text for done in await use(fleet, work)] == ["abca", "abca"]
    assert count(fleet, "granted") == 2


async def test_a_failure_stays_one(fleet):
    for node in fleet.nodes:
        node.script = Script(fail_after=2)

    def work(client):
        failed = client.generate("abc", max_tokens=4)
        codes = []
        for _ in range(2):
            with pytest.raises(RequestError) as caught:
                failed.result()
            codes.append(caught.value.code)
        return failed.so_far.text, codes

    assert await use(fleet, work) == ("ab", [Code.INTERNAL] * 2)
    assert count(fleet, "granted") == 1


async def test_the_client_takes_another_route_when_a_node_is_full_or_gone(fleet):
    for change in ({"full": True}, {"fail_before": "UNAVAILABLE"}):
        for node in fleet.nodes:
            node.script = Script(**change)
        with pytest.raises(RequestError) as caught:
            await use(fleet, lambda client: client.generate("abc", max_tokens=4).result())
        expected = Code.RESOURCE_EXHAUSTED if "full" in change else Code.UNAVAILABLE
        assert caught.value.code == expected
        await eventually(lambda: fleet.idle)
        fleet.nodes[0].script = Script()
        for _ in range(4):
            done = await use(fleet, lambda c: c.generate("abc", max_tokens=4).result())
            assert (done.text, done.summary.node) == ("abca", "node-0")


async def test_an_answer_that_breaks_off_goes_on_at_another_node(fleet):
    """After the first token too: no token is lost, and none comes twice."""
    prompt = "abcdefghijklmnopqrstuvwxyz" * 3
    warm = await use(fleet, lambda client: client.generate(prompt, max_tokens=1).result())
    broken = next(node for node in fleet.nodes if node.name == warm.summary.node)
    other = next(node for node in fleet.nodes if node is not broken)
    await eventually(lambda: sum(n.indexed_blocks for n in fleet.app.view.nodes()) >= 4, 10)
    broken.script = Script(fail_after=3, code="UNAVAILABLE")
    done = await use(fleet, lambda c: c.generate(prompt, max_tokens=8, seed=5).result())
    assert (done.text, done.finish_reason) == ("abcdefgh", "length")
    assert (done.summary.node, done.route.attempt) == (other.name, 2)
    first, second = broken.requests[-1], other.requests[-1]
    assert [(each.token_ids, each.text_bytes_sent) for each in second.resume] == [
        (pack_tokens(list(b"abc")), 3)
    ]
    assert first.sampling == second.sampling
    assert (first.request_id, first.attempt + 1) == (second.request_id, second.attempt)


async def test_a_dead_node_is_left_before_the_router_knows(key_file):
    nodes = [StubNode(f"node-{i}", lease_key=KEY) for i in range(2)]
    async with running_fleet(*nodes, fleet_key_file=key_file) as fleet:
        lease = await route(fleet, "abc", request_id="mine")
        again = await route(fleet, "abc", request_id="mine", avoid=[lease.route.node])
        assert again.route.node != lease.route.node
        assert (lease.dispatch.attempt, again.dispatch.attempt) == (1, 2)
        assert count(fleet, "rerouted") == 1
        assert fleet.app.ledger.in_flight(lease.route.node) == 0
        names = ["node-0", "node-1"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await route(fleet, "abc", request_id="mine", avoid=names)
        assert caught.value.code() == Code.UNAVAILABLE
        await eventually(lambda: fleet.idle)


async def test_cancelling_ends_the_work_on_the_node(fleet):
    for node in fleet.nodes:
        node.script = Script(per_token=0.02)

    def work(client):
        with client.generate("abc", max_tokens=1000) as generation:
            next(iter(generation))

    await use(fleet, work)
    await eventually(lambda: fleet.idle, 1)
    assert 0 < sum(node.frames for node in fleet.nodes) < 100


async def test_a_client_that_cancels_before_its_lease_is_told_so(fleet):
    def work(client):
        generation = client.generate("abc")
        generation.cancel()
        return generation.result()

    with pytest.raises(RequestError) as caught:
        await use(fleet, work)
    assert caught.value.code == Code.CANCELLED


async def test_a_router_without_a_key_runs_the_request_itself():
    async with running_fleet(StubNode()) as fleet:
        done = await use(fleet, lambda client: client.generate("abc", max_tokens=4).result())
        assert done.text == "abca"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await route(fleet, "abc")
        refused = from_rpc_error(caught.value)
        assert (refused.code, refused.field) == (Code.UNIMPLEMENTED, "lease")


async def test_errors_of_a_request_are_those_of_generate(fleet):
    with pytest.raises(RequestError) as caught:
        await use(fleet, lambda client: client.generate("abc", temperature=-1).result())
    assert (caught.value.code, caught.value.field) == (Code.INVALID_ARGUMENT, "temperature")
    with pytest.raises(grpc.aio.AioRpcError) as bad:
        await route(fleet, "abc", avoid=["x"] * 65)
    assert from_rpc_error(bad.value).field == "avoid"


async def test_a_tenant_at_its_limit_may_route_again_what_it_runs(key_file, tmp_path):
    nodes = [StubNode(f"node-{i}", lease_key=KEY) for i in range(2)]
    tenants = tenants_file(tmp_path, acme={"concurrency": 1}, other={})
    async with running_fleet(*nodes, fleet_key_file=key_file, tenants=tenants) as fleet:
        first = await route(fleet, "abc", by="acme", request_id="mine")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await route(fleet, "abc", by="acme", request_id="another")
        assert caught.value.code() == Code.RESOURCE_EXHAUSTED
        again = await route(fleet, "abc", by="acme", request_id="mine", avoid=[first.route.node])
        assert again.dispatch.attempt == 2
        with pytest.raises(grpc.aio.AioRpcError):  # refused after the lease before was given up
            await route(fleet, "abc", by="acme", request_id="mine", avoid=["node-0", "node-1"])
        third = await route(fleet, "abc", by="acme", request_id="mine")
        assert third.dispatch.attempt == 3
        assert (await route(fleet, "abc", by="other", request_id="yours")).dispatch.attempt == 1


async def test_a_tenant_does_not_pay_for_what_a_lost_node_has_done(key_file, tmp_path):
    nodes = [StubNode(f"node-{i}", lease_key=KEY) for i in range(2)]
    # Enough for one such request, and next to nothing a second.
    limits = {"tokens_per_second": 0.01, "burst_seconds": 12_000}
    tenants = tenants_file(tmp_path, acme=limits)
    async with running_fleet(*nodes, fleet_key_file=key_file, tenants=tenants) as fleet:
        lease = await route(fleet, "abc", 80, by="acme", request_id="mine")
        running = asyncio.create_task(stream(lease, (("x-stub", "per_token=0.02"),)))
        await eventually(lambda: count(fleet, "claimed") == 1)
        await fleet.nodes[int(lease.route.node[-1])].stop()
        with pytest.raises(grpc.aio.AioRpcError):
            await running
        await eventually(lambda: count(fleet, "lost") == 1, 5)
        again = await route(fleet, "abc", 80, by="acme", request_id="mine")
        assert again.dispatch.attempt == 2

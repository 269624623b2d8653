"""Router cases with every part a process of its own: two routers, three nodes, one Redis. Faults
are real: SIGKILL, SIGSTOP, cut connections, a trimmed stream, a Redis that restarts empty.

The model of the nodes is a script (tests/router/stub_node.py); what needs a real one is in
test_real_failures.py and test_real_admission.py.
"""

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections import Counter

import grpc
import pytest

from tests.cases.process_world import (
    BLOCKS,
    FREE,
    LARGE,
    NAMES,
    Code,
    all_free,
    ask,
    fleet,
    gone,
    knows,
    one_of,
    refusal,
    requests_running,
    served_by,
    until_known,
    world,
)
from tests.router.admission_fixture import metric
from tests.router.asking import request, text_of
from tests.router.node_process import ROOT
from tests.router.process_fleet import requests_on, router_processes, until

__all__ = ["fleet", "world"]  # fixtures

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


async def code(work):
    try:
        await work
    except grpc.aio.AioRpcError as error:
        return error.code()
    return Code.OK


@pytest.mark.parametrize(
    ("prompt", "tokens", "field"), [("x" * 3300, 1, "prompt"), ("x" * 100, 3200, "max_tokens")]
)
async def test_a1_a2_what_no_pool_can_hold_is_refused_at_once(fleet, prompt, tokens, field):
    for router in fleet.routers:
        refused = await refusal(router, prompt=prompt, tokens=tokens)
        assert (refused.code, refused.field) == (Code.INVALID_ARGUMENT, field)
        assert text_of(await ask(router)) == "hello"


async def test_r1_r14_two_routers_spread_one_system_prompt(fleet):
    """One node could hold all of them, and has the prefix when they come."""
    system = "r1" * 32
    (first,) = await served_by(fleet, [system])
    await until_known(fleet, system, first)
    prompts = [f"{system} user {number}" for number in range(30)]
    served = await served_by(fleet, prompts, tokens=12, stub="prefill=0.3")
    assert max(served.values()) <= 24, served


async def test_r2_r14_two_routers_without_a_prefix_do_not_herd(fleet):
    prompts = [f"{number:03} r2" for number in range(36)]
    served = await served_by(fleet, prompts, tokens=12, stub="per_token=0.02")
    assert min(served[name] for name in NAMES) >= 6
    firsts = {(await ask(fleet.routers[0], f"alone {n}"))[0].route.node for n in range(12)}
    assert len(firsts) > 1


async def test_r6_a_flapping_node_costs_no_request_and_no_reservation(fleet):
    work = []

    async def runs_on_the_third():
        """One that has just come back gets little at first: more are sent until it has some."""
        if await requests_on(fleet.nodes[2].address):
            return True
        if all(each.done() for each in work):
            work.extend(
                asyncio.create_task(ask(router, f"r6 {place}", 40, "per_token=0.02"))
                for place, router in enumerate(fleet.routers * 6, len(work))
            )
        return False

    for fault in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
        await until(runs_on_the_third, 20)
        fleet.nodes[2].signal(fault)
        for router in fleet.routers:
            await until(lambda router=router: gone(router, "node-2"))
            await router.in_flight()  # looks for one below zero
        if fault == signal.SIGKILL:
            fleet.nodes[2] = await asyncio.to_thread(fleet.nodes[2].again)
        else:
            fleet.nodes[2].signal(signal.SIGCONT)
        for router in fleet.routers:
            await until(lambda router=router: router.up("node-2"))
    for place, frames in enumerate(await asyncio.gather(*work)):
        assert text_of(frames) == (f"r6 {place}" * 40)[:40]


async def test_r8_client_errors_in_a_row_keep_all_breakers_closed(fleet):
    router = fleet.routers[0]
    for _ in range(10):
        refused = await refusal(router, stub="fail_before=INVALID_ARGUMENT")
        assert refused.code == Code.INVALID_ARGUMENT
    assert await metric(router, "breaker", state="closed") == 3


async def test_r9_breakers_open_and_close_after_successes(fleet):
    """Every node fails; the first whose breaker opens is spared, and tried again."""
    router, other = fleet.routers

    async def count(state, router=router):
        return await metric(router, "breaker", state=state)

    while not await count("open"):
        await refusal(router, stub="fail_before=INTERNAL")
    assert text_of(await ask(router)) == "hello"  # the others serve
    assert await count("closed", other) == 3  # each router finds out by itself
    await until(lambda: count("half-open"))

    async def closed():
        assert text_of(await ask(router)) == "hello"
        return await count("closed") == 3

    await until(closed)


CLIENT = """
import sys
import grpc
from kvmesh.v1 import generate_pb2 as pb, inference_pb2_grpc
target, stub = sys.argv[1:]
metadata = (("authorization", "Bearer key-free"), ("x-stub", stub))
sampling = pb.SamplingParams(max_tokens=2900)
with grpc.insecure_channel(target) as channel:
    call = inference_pb2_grpc.InferenceStub(channel).Generate(
        pb.GenerateRequest(text="leave", sampling=sampling), metadata=metadata
    )
    for frame in call:
        print("frame", flush=True)
"""


@contextlib.contextmanager
def client(router, stub):
    """A process that asks, and is killed when it is left."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, router.target, stub], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("stub", ["wait=30", "prefill=30", "per_token=0.02"])
async def test_r10_a_client_that_is_killed_frees_node_and_router(fleet, stub):
    with client(fleet.routers[0], stub) as process:
        if stub.startswith("per_token"):
            await asyncio.to_thread(process.stdout.readline)
        else:
            await until(lambda: requests_running(fleet, 1))
        assert not await all_free(fleet)
        process.kill()
        await until(lambda: all_free(fleet), 1)


async def test_r10_a_client_that_is_killed_in_the_queue_frees_its_place(fleet):
    router = fleet.routers[0]
    full = [asyncio.create_task(ask(router, f"{n}", LARGE, "prefill=30")) for n in range(3)]
    await until(lambda: requests_running(fleet, 3))

    async def queued(count):
        return await metric(router, "queue_depth") == count

    with client(router, "") as process:
        await until(lambda: queued(1))
        process.kill()
        await until(lambda: queued(0), 1)
    assert await requests_running(fleet, 3)
    for each in full:
        each.cancel()
    await until(lambda: all_free(fleet), 1)


async def test_r13_a_node_is_killed_in_mid_stream(fleet):
    router = fleet.routers[1]
    metadata = (*FREE, ("x-stub", "per_token=0.02"))
    asked = request("mid-stream", 60)
    call = aiter(router.inference.Generate(asked, metadata=metadata, timeout=40))
    frames = [await anext(call)]
    victim = NAMES.index(frames[0].route.node)
    fleet.nodes[victim].signal(signal.SIGKILL)
    frames += [frame async for frame in call]
    assert text_of(frames) == "mid-stream" * 6
    assert frames[-1].summary.node != NAMES[victim]


async def test_r14_concurrency_holds_over_both_routers(fleet):
    one, two = fleet.routers
    held = [
        asyncio.create_task(ask(router, f"held {n}", stub="prefill=30", tenant="acme"))
        for n, router in enumerate((one, two, one))
    ]
    await until(lambda: requests_running(fleet, 3))
    for router in fleet.routers:
        refused = await refusal(router, tenant="acme")
        assert refused.code == Code.RESOURCE_EXHAUSTED
        assert refused.message.startswith("concurrency: tenant acme is at its limit of 3")
        assert text_of(await ask(router)) == "hello"  # others are not touched
    held[0].cancel()

    async def has_room():
        return await code(ask(two, tenant="acme")) == Code.OK

    await until(has_room)
    for each in held:
        each.cancel()


async def test_r14_rates_hold_over_both_routers(fleet):
    work = [code(ask(fleet.routers[n % 2], tenant="hasty")) for n in range(30)]
    assert Counter(await asyncio.gather(*work)) == {Code.OK: 10, Code.RESOURCE_EXHAUSTED: 20}


async def test_r14_a_router_that_is_killed_takes_nothing_along_but_its_streams(fleet):
    """One more joins, knows at once what is cached where, and dies with a stream."""
    prompts = [f"r14 joined {number} " * 6 for number in range(3)]
    holders = {prompt: await one_of(fleet.routers[0], prompt) for prompt in prompts}
    addresses = [node.address for node in fleet.nodes]
    async with router_processes(1, addresses, redis=fleet.redis.url, **fleet.flags) as (third,):
        await until(lambda: third.up(*NAMES))
        for prompt, holder in holders.items():
            await until(lambda p=prompt, h=holder: knows(third, p, h))
        lost = asyncio.create_task(code(ask(third, "lost", 100, "per_token=0.05")))
        await until(lambda: requests_running(fleet, 1))
        going_on = asyncio.create_task(ask(fleet.routers[0], "goes on", 70, "per_token=0.02"))
        await until(lambda: requests_running(fleet, 2))
        third.signal(signal.SIGKILL)
        assert await lost == Code.UNAVAILABLE
        assert text_of(await going_on) == "goes on" * 10
        await until(lambda: all_free(fleet), 1)


async def test_r14_a_full_fleet_is_overrun_by_neither(fleet):
    """What one router has sent, the other one knows from the nodes, and queues its own."""
    one, two = fleet.routers
    full = [asyncio.create_task(ask(one, f"{n}", LARGE, "prefill=30")) for n in range(3)]
    await until(lambda: requests_running(fleet, 3))

    async def seen():
        nodes = (await two.nodes()).values()
        return all(node.load.committed_blocks > BLOCKS / 2 for node in nodes)

    await until(seen)
    waiting = asyncio.create_task(ask(two, "waits", LARGE))
    await until(lambda: queued_at(two, 1))
    assert await requests_running(fleet, 3)
    assert (await checked_refusals(fleet)) == 0
    full[1].cancel()
    frames = await waiting
    assert frames[-1].summary.usage.completion_tokens == LARGE
    assert frames[0].route.attempt == 1  # no node had to refuse it
    for each in full:
        each.cancel()


async def queued_at(router, count):
    return await metric(router, "queue_depth") == count


async def checked_refusals(fleet):
    """Retries of the routers: what a node has refused."""
    return sum([await metric(router, "retries_total", code="RESOURCE_EXHAUSTED")
                for router in fleet.routers])  # fmt: skip

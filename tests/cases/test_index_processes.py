"""What becomes of the index when processes and connections fail: see test_router_processes.py."""

import asyncio
import contextlib
import signal
from types import SimpleNamespace

import pytest
from redis.asyncio import Redis

from tests.cases.process_world import (
    NAMES,
    STREAM,
    agree,
    ask,
    cached_on,
    fleet,
    gone,
    has_mode,
    knows,
    one_of,
    served_by,
    until_known,
    world,
)
from tests.router.admission_fixture import metric
from tests.router.process_fleet import until

__all__ = ["fleet", "world"]  # fixtures

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


async def test_r3_a_node_killed_and_started_again_holds_nothing(fleet):
    """Although what it held is still in Redis, under its name."""
    prompt = "r3" * 32
    name = (await ask(fleet.routers[0], prompt))[-1].summary.node
    await until_known(fleet, prompt, name)
    place = NAMES.index(name)
    old = (await fleet.routers[0].nodes())[name].epoch
    key = f"{{kvmesh:0}}:held:{name}:{old}"
    fleet.nodes[place].signal(signal.SIGKILL)
    for router in fleet.routers:
        await until(lambda router=router: gone(router, name))
    fleet.nodes[place] = await asyncio.to_thread(fleet.nodes[place].again)
    async with Redis.from_url(fleet.redis.url) as redis:
        for router in fleet.routers:
            await until(lambda router=router: router.up(name))
            assert (await cached_on(router, prompt))[name] == 0
            node = (await router.nodes())[name]
            assert (node.indexed_blocks, node.epoch > old) == (0, True)
        assert await redis.exists(key)


async def test_r4_a_trimmed_stream_is_noticed_and_read_again(fleet):
    """While one router is frozen its Redis stream is trimmed; the other one is the witness."""
    frozen, witness = fleet.routers
    frozen.signal(signal.SIGSTOP)
    prompts = [f"r4 {number} " * 8 for number in range(4)]
    holders = [(await ask(witness, each))[-1].summary.node for each in prompts]
    for prompt, holder in zip(prompts, holders, strict=True):
        await until(lambda p=prompt, h=holder: knows(witness, p, h))
    async with Redis.from_url(fleet.redis.url) as redis:
        await redis.xtrim(STREAM, maxlen=0, approximate=False)
    fleet.to_redis.hold(b"HMGET")  # the first command of a node's reload
    frozen.signal(signal.SIGCONT)
    await until(lambda: has_mode(frozen, holders[-1], "stale"))
    fleet.to_redis.release()
    for name in NAMES:
        await until(lambda name=name: has_mode(frozen, name, "exact"))
    for prompt in prompts:
        assert await cached_on(frozen, prompt) == await cached_on(witness, prompt)


@pytest.mark.parametrize("feed", ["redis", "direct"])
async def test_r4_a_cut_state_stream_is_made_good(fleet, feed):
    """One router loses a node, which goes on changing through the other."""
    cut, witness = fleet.routers
    if feed == "direct":
        fleet.to_redis.shut()
        await until(lambda: knows_anew(cut, f"told by the nodes {feed}"))
    fleet.to_node.shut()
    await until(lambda: gone(cut, "node-0"))
    prompts = [f"cut {feed} {number} " * 8 for number in range(6)]
    assert "node-0" in await served_by(SimpleNamespace(routers=(witness, witness)), prompts)
    assert {(await ask(cut))[-1].summary.node for _ in range(6)} <= {"node-1", "node-2"}
    fleet.to_node.open()
    await until(lambda: cut.up("node-0"))
    await until(lambda: has_mode(cut, "node-0", "exact"))
    await until(lambda: agree(cut, witness))


async def knows_anew(router, prompt):
    """Whether what it sends now comes into its index."""
    return await knows(router, prompt, await one_of(router, prompt))


async def test_r4_a_connection_to_redis_that_is_cut_costs_nothing_known(fleet):
    cut, witness = fleet.routers
    fleet.to_redis.shut()
    holders = {prompt: await one_of(witness, prompt) for prompt in ("redis " * 11, "cut off" * 10)}
    for prompt, holder in holders.items():  # the node itself has told it
        await until(lambda p=prompt, h=holder: knows(cut, p, h))
    fleet.to_redis.open()
    await until(lambda: agree(cut, witness))


async def test_r12_redis_is_killed_and_comes_back_empty(fleet):
    before = "r12 before" * 7
    holder = await one_of(fleet.routers[0], before)
    await until_known(fleet, before, holder)
    fleet.redis.stop()

    async def limits_shared(value):
        for router in fleet.routers:
            await ask(router, tenant="acme")
        shown = [await metric(router, "limits_shared") for router in fleet.routers]
        return shown == [value, value]

    await until(lambda: limits_shared(0))
    known = {before: holder}
    for number in range(6):  # requests go on, and what they cache is known
        prompt = f"r12 away {number}" * 6
        known[prompt] = await one_of(fleet.routers[number % 2], prompt)
    for prompt, node in known.items():
        await until_known(fleet, prompt, node)
    fleet.redis.start()
    await until(lambda: limits_shared(1))
    nodes = await fleet.routers[0].nodes()
    async with Redis.from_url(fleet.redis.url) as redis:
        for name in NAMES:
            key = f"{{kvmesh:0}}:held:{name}:{nodes[name].epoch}"
            held = nodes[name].indexed_blocks + 2  # sequence and generation
            await until(lambda key=key, held=held: has_length(redis, key, held))
    for prompt, node in known.items():
        assert await knows(fleet.routers[1], prompt, node)


async def has_length(redis, key, count):
    with contextlib.suppress(ConnectionError):
        return await redis.hlen(key) == count

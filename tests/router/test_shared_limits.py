"""A tenant's rates and concurrency over several routers: in one Redis, and in a Redis Cluster of
three real servers.
"""

import asyncio
import json
import re
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.crc import key_slot

from kvmesh.errors import RequestError
from prefix_index.redis_shards import RedisShards
from router.shared_limits import SharedLimits
from router.tenant_source import TenantsInRedis, tenants_key
from tests.prefix_index.harness import eventually
from tests.redis_cluster_fixture import ask, redis_cluster
from tests.redis_fixture import redis_server
from tests.router.test_limits import tenant

__all__ = ["redis_cluster", "redis_server"]

DOCS = Path(__file__).resolve().parents[2] / "docs" / "redis.md"


@pytest.fixture(params=["redis", "cluster"])
def server(request):
    """Empty, and left running."""
    if request.param == "redis":
        return request.getfixturevalue("redis_server")
    cluster = request.getfixturevalue("redis_cluster")
    for each in cluster.servers:
        ask(each, "flushall")
    return cluster


@asynccontextmanager
async def two_routers(server):
    """Their views of one Redis."""
    both = [SharedLimits(RedisShards(server.url), "fleet", name, lease=0.4) for name in "ab"]
    yield both
    for each in both:
        await each.settled()
        await each._servers.aclose()


@pytest.fixture
async def routers(server):
    async with two_routers(server) as both:
        yield both


@pytest.fixture
async def clustered(redis_cluster):
    async with two_routers(redis_cluster) as both:
        yield both


async def shared_refusal(limits, acme, tokens=0):
    with pytest.raises(RequestError) as caught:
        await limits.take(acme, tokens)
    return caught.value


async def test_r14_concurrency_holds_over_two_routers(routers):
    a, b = routers
    acme = tenant(concurrency=2)
    first, second = await a.take(acme, 0), await b.take(acme, 0)
    for each in routers:
        assert (await shared_refusal(each, acme)).message.startswith("concurrency")
    assert await a.take(tenant("zeta", concurrency=1), 0)
    a.give(first, 0)
    b.give(second, 0)
    await asyncio.gather(a.settled(), b.settled())
    assert await b.take(acme, 0)


async def test_r14_rates_hold_over_two_routers(routers):
    acme = tenant(requests_per_second=1e-3, burst_seconds=10_000)
    outcomes = await asyncio.gather(
        *(routers[place % 2].take(acme, 0) for place in range(30)), return_exceptions=True
    )
    refused = [each for each in outcomes if isinstance(each, RequestError)]
    assert len(refused) == 20
    assert refused[0].message.startswith("requests_per_second")
    assert refused[0].retry_after == pytest.approx(1000, rel=0.01)


async def test_r14_tokens_hold_over_two_routers_and_are_corrected(routers):
    a, b = routers
    acme = tenant(tokens_per_second=1e-3, burst_seconds=1_000_000)
    held = await a.take(acme, 900)
    error = await shared_refusal(b, acme, 200)
    assert error.message.startswith("tokens_per_second")
    assert error.retry_after == pytest.approx(100_000, rel=0.01)
    a.give(held, -600)
    await a.settled()
    assert await b.take(acme, 600)
    await shared_refusal(a, acme, 200)


async def test_a_request_of_a_dead_router_counts_until_its_lease_ends(routers):
    dead, living = routers
    acme = tenant(concurrency=2)
    assert await dead.take(acme, 0)
    assert await living.take(acme, 0)
    await shared_refusal(living, acme)
    taken = None
    for _ in range(100):
        await living.renew()
        try:
            taken = await living.take(acme, 0)
            break
        except RequestError:
            await asyncio.sleep(0.02)
    assert taken
    await shared_refusal(living, acme)  # its own first one is still counted


async def test_without_redis_each_router_goes_on_alone_and_says_so(routers, server):
    a, _ = routers
    acme = tenant(concurrency=1)
    server.freeze()
    assert await a.take(acme, 0) is None
    assert (a.shared, a.failures) == (False, 1)
    assert await a.take(acme, 0) is None
    assert a.failures == 1  # it is not asked again at once
    server.thaw()
    follow = asyncio.create_task(a.run())
    await eventually(lambda: a.shared, 5)
    follow.cancel()
    assert await a.take(acme, 0)


async def test_a_request_that_is_cancelled_while_it_is_counted_counts_no_more(routers):
    a, b = routers
    acme = tenant(concurrency=1)
    await b.renew()
    taking = asyncio.create_task(a.take(acme, 0))
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.wait([taking])
    await a.settled()

    async def free():
        try:
            return await b.take(acme, 0)
        except RequestError:
            return None

    for _ in range(100):
        if await free():
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("still counted")


async def test_a_tenant_without_limits_costs_no_call(routers):
    a, _ = routers
    assert await a.take(tenant(), 10**9) is None
    assert a.shared


async def test_each_tenant_lies_in_one_slot_and_the_fleet_on_all_servers(clustered, redis_cluster):
    """A script may name keys of one slot only: Redis Cluster refuses any other."""
    for each in redis_cluster.servers:
        ask(each, "flushall")
    a, b = clustered
    for number in range(24):
        one = tenant(f"tenant-{number}", concurrency=1, requests_per_second=100)
        assert await a.take(one, 0)
        assert (await shared_refusal(b, one)).message.startswith("concurrency")
    slots, filled = {}, set()
    for place, each in enumerate(redis_cluster.servers):
        for key in ask(each, "keys", "*").split():
            slots.setdefault(key.rpartition(":")[0], set()).add(key_slot(key.encode()))
            filled.add(place)
    assert len(slots) == 24
    assert {len(each) for each in slots.values()} == {1}
    assert filled == {0, 1, 2}
    assert (a.failures, b.failures) == (0, 0)


async def test_limits_move_with_their_slot(clustered, redis_cluster):
    a, b = clustered
    acme = tenant(concurrency=1)
    held = await a.take(acme, 0)
    slot = key_slot(f"{{fleet:tenant:{b'acme'.hex()}}}:running".encode())
    source = redis_cluster.owner(slot)
    target = next(each for each in redis_cluster.servers if each is not source)
    redis_cluster.move_slot(slot, source, target)

    async def counted_again():
        """Each router has its first look at the old place, and is alone until the next."""
        for each in clustered:
            await each.renew()
        return all(each.shared for each in clustered)

    await eventually(counted_again)
    assert (await shared_refusal(b, acme)).message.startswith("concurrency")
    a.give(held, 0)
    await a.settled()
    assert await b.take(acme, 0)


async def test_the_user_of_the_documentation_may_do_all_that_limits_and_tenants_need(server):
    rules = re.findall(r"ACL SETUSER kvmesh ((?:.|\n {6} )*)", DOCS.read_text())
    words = " ".join(rules).replace(">…", ">secret").split()
    for each in getattr(server, "servers", [server]):
        ask(each, "acl", "setuser", "kvmesh", *words)
    record, key = {"keys": [f"sha256:{'0' * 64}"]}, tenants_key("kvmesh")
    admin = RedisShards(server.url)
    await (await admin.client(key.encode())).hset(key, "acme", json.dumps(record))
    await admin.aclose()
    servers = RedisShards(server.url.replace("//", "//kvmesh:secret@"))
    limits = SharedLimits(servers, "kvmesh", "router")
    acme = tenant(requests_per_second=10, tokens_per_second=10, concurrency=2)
    held = await limits.take(acme, 5)
    await limits.renew()
    limits.give(held, -5)
    await limits.settled()
    assert limits.failures == 0
    assert len(list(await TenantsInRedis(servers, "kvmesh").changed())) == 1
    await servers.aclose()

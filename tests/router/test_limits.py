"""A tenant's rates and concurrency: on one router's account, and over routers in Redis."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from redis.asyncio import Redis

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import generate_pb2 as pb
from prefix_index.redis_shards import RedisShards
from router.charge import TokenAccount
from router.local_limits import FIRST_GUESS, LocalLimits
from router.request_size import RequestSize
from router.shared_limits import SharedLimits
from router.tenant_source import TenantsInRedis, tenants_key
from router.tenants import Tenant, TenantLimits
from router.token_bucket import TokenBucket
from tests.redis_fixture import redis_server  # noqa: F401
from tests.router.fleet_fixture import eventually

DOCS = Path(__file__).resolve().parents[2] / "docs" / "redis.md"
SIZE = RequestSize(100, 1000, 1, 16)


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def tenant(name="acme", **limits):
    return Tenant(name, TenantLimits(**limits))


def refusal(action):
    with pytest.raises(RequestError) as caught:
        action()
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    return caught.value


def test_a_bucket_gives_its_burst_then_its_rate():
    bucket = TokenBucket(rate=2, burst=6, now=0)
    bucket.take(6, 0)
    assert bucket.delay(3, 0) == 1.5
    assert bucket.delay(3, 1.5) == 0
    assert bucket.delay(6, 100) == 0
    bucket.take(6, 100)
    assert bucket.delay(1, 100) == 0.5


def test_more_than_a_burst_waits_for_a_full_bucket_and_leaves_a_debt():
    bucket = TokenBucket(rate=2, burst=6, now=0)
    assert bucket.delay(100, 0) == 0
    bucket.take(100, 0)
    assert bucket.delay(1, 0) == (94 + 1) / 2


def test_what_is_given_back_does_not_exceed_the_burst():
    bucket = TokenBucket(rate=1, burst=5, now=0)
    bucket.take(-100, 0)
    bucket.take(5, 0)
    assert bucket.delay(1, 0) == 1


def test_requests_a_second_and_at_once():
    clock = Clock()
    limits = LocalLimits(clock)
    acme = tenant(requests_per_second=2, burst_seconds=1, concurrency=2)
    with limits.request(acme), limits.request(acme):
        error = refusal(limits.request(acme).__enter__)
        assert error.message.startswith("concurrency: tenant acme is at its limit of 2")
    error = refusal(limits.request(acme).__enter__)
    assert error.message.startswith("requests_per_second: tenant acme is at its limit of 2")
    assert error.retry_after == 0.5
    with limits.request(tenant("zeta", requests_per_second=2)):
        clock.now = 0.5
        with limits.request(acme):
            pass
    assert limits.idle


def test_other_limits_count_from_then_on_and_forget_nothing():
    clock = Clock()
    limits = LocalLimits(clock)
    with limits.request(tenant(requests_per_second=1, burst_seconds=1)):
        faster = tenant(requests_per_second=10, burst_seconds=1)
        assert refusal(limits.request(faster).__enter__).retry_after == 0.1
        assert refusal(limits.request(tenant(concurrency=1)).__enter__).retry_after
    with limits.request(tenant()):
        pass


def usage(prompt=100, output=50):
    return pb.Usage(prompt_tokens=prompt, completion_tokens=output)


async def test_tokens_are_estimated_and_then_corrected_by_what_was_used():
    limits = LocalLimits(Clock())
    account = TokenAccount(limits, None)
    acme = tenant(tokens_per_second=100, burst_seconds=10)
    charge = await account.take(acme, SIZE)
    assert charge.expected == 100 + FIRST_GUESS
    charge.use(usage(), frames=50)
    charge.close()
    charge.close()
    assert limits.expected_tokens(acme, SIZE) < charge.expected  # it has learned
    limits.take_tokens(acme, 850)
    assert refusal(lambda: limits.take_tokens(acme, 1)).message.startswith("tokens_per_second")


async def test_a_request_that_no_node_worked_on_costs_nothing():
    limits = LocalLimits(Clock())
    acme = tenant(tokens_per_second=100, burst_seconds=10)
    (await TokenAccount(limits, None).take(acme, SIZE)).close()
    limits.take_tokens(acme, 1000)


async def test_one_that_broke_off_costs_its_prompt_and_what_came():
    limits = LocalLimits(Clock())
    acme = tenant(tokens_per_second=100, burst_seconds=10)
    charge = await TokenAccount(limits, None).take(acme, SIZE)
    charge.use(pb.Usage(), frames=40)
    charge.close()
    limits.take_tokens(acme, 860)
    refusal(lambda: limits.take_tokens(acme, 1))


@pytest.fixture
async def routers(redis_server):  # noqa: F811
    """Two routers' views of one Redis."""
    both = [SharedLimits(RedisShards(redis_server.url), "fleet", name, lease=0.4) for name in "ab"]
    yield both
    for each in both:
        await each.settled()
        await each._servers.aclose()


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


async def test_without_redis_each_router_goes_on_alone_and_says_so(routers, redis_server):  # noqa: F811
    a, _ = routers
    acme = tenant(concurrency=1)
    redis_server.freeze()
    assert await a.take(acme, 0) is None
    assert (a.shared, a.failures) == (False, 1)
    assert await a.take(acme, 0) is None
    assert a.failures == 1  # it is not asked again at once
    redis_server.thaw()
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


async def test_the_user_of_the_documentation_may_do_all_that_limits_and_tenants_need(redis_server):  # noqa: F811
    rules = re.findall(r"ACL SETUSER kvmesh ((?:.|\n {6} )*)", DOCS.read_text())
    words = " ".join(rules).replace(">…", ">secret").split()
    admin = Redis.from_url(redis_server.url)
    await admin.execute_command("ACL", "SETUSER", "kvmesh", *words)
    record = {"keys": [f"sha256:{'0' * 64}"]}
    await admin.hset(tenants_key("kvmesh"), "acme", json.dumps(record))
    await admin.aclose()
    url = redis_server.url.replace("//", "//kvmesh:secret@")
    servers = RedisShards(url)
    limits = SharedLimits(servers, "kvmesh", "router")
    acme = tenant(requests_per_second=10, tokens_per_second=10, concurrency=2)
    held = await limits.take(acme, 5)
    await limits.renew()
    limits.give(held, -5)
    await limits.settled()
    assert limits.failures == 0
    assert len(list(await TenantsInRedis(servers, "kvmesh").changed())) == 1
    await servers.aclose()

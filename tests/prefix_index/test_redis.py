"""The shared index when Redis is away, empty, frozen, older or shared with strangers: one Redis,
and a Redis Cluster.
"""

import asyncio
import contextlib

import pytest
from redis.exceptions import RedisError

from kvmesh.v1.cache_node_pb2 import TIER_GPU
from kvmesh.v1.fleet_pb2 import INDEX_MODE_EXACT, INDEX_MODE_STALE
from prefix_index.event_log import EventLog
from prefix_index.events import Removed, Stored
from prefix_index.mirror import Match, Mirror
from prefix_index.redis_feed import RedisFeed
from prefix_index.redis_layout import shard_of
from prefix_index.redis_publisher import RedisPublisher
from tests.prefix_index.harness import GROUP, SHARDS, SILENCE, RedisFleet, eventually, stop
from tests.prefix_index.strategies import KEYS
from tests.redis_cluster_fixture import redis_cluster  # noqa: F401
from tests.redis_fixture import free_port, redis_server  # noqa: F401

A, B, C = KEYS[:3]


@pytest.fixture(params=["redis", "cluster"])
async def unwatched(request):
    """A fleet whose feed has not begun; tests that damage the cluster leave it whole."""
    if request.param == "redis":
        made = RedisFleet(request.getfixturevalue("redis_server"))
    else:
        made = RedisFleet(request.getfixturevalue("redis_cluster"), shards=SHARDS)
        await made.empty()
    yield made
    await made.redis.aclose()


@pytest.fixture
async def fleet(unwatched):
    async with unwatched as made:
        yield made


def stored(*keys):
    return [Stored(key, TIER_GPU) for key in keys]


async def test_r12_redis_stops_and_comes_back_empty(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B, C))
    await fleet.settled("node")

    fleet.server.stop()
    await eventually(lambda: not fleet.feed.healthy)
    assert fleet.mirror.mode("node") == INDEX_MODE_STALE
    assert fleet.mirror.match(KEYS) == {"node": Match(3, 0)}  # requests go on with what is known
    log.append([Removed(C, TIER_GPU)])

    fleet.server.start()
    await fleet.published("node")
    await fleet.settled("node")
    assert fleet.feed.healthy
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}
    log.append(stored(C))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(3, 0)}


async def test_r12_an_idle_node_writes_its_blocks_again(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B))
    await fleet.published("node")
    fleet.server.restart_empty()
    await eventually(lambda: _fields(fleet, 2 + 2))
    await fleet.settled("node")


async def test_an_index_flushed_under_live_connections_is_written_again(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B))
    await fleet.settled("node")
    await fleet.empty()
    log.append(stored(C))
    await eventually(lambda: _fields(fleet, 2 + 3))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(3, 0)}


async def test_a_router_does_not_believe_a_torso(fleet):
    """A delta that fell into an emptied Redis is not the node's state."""
    log = await fleet.start("node")
    log.append(stored(A, B))
    await fleet.published("node")
    await fleet.redis.delete(fleet.held_key("node"))
    await fleet.redis.hset(fleet.held_key("node"), b"sequence", 7)
    fleet.watch("node")
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}


async def test_an_old_dump_is_replaced(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B))
    await fleet.published("node")
    dump = await fleet.redis.dump(fleet.held_key("node"))
    log.append([Removed(B, TIER_GPU)])
    await fleet.published("node")
    await fleet.redis.restore(fleet.held_key("node"), 0, dump, replace=True)
    await fleet.published("node")
    await eventually(lambda: _fields(fleet, 2 + 1))


async def test_a_frozen_redis_holds_up_nothing(fleet):
    log = await fleet.up("node")
    log.append(stored(A))
    await fleet.settled("node")
    fleet.server.freeze()
    try:
        log.append(stored(B))
        await eventually(lambda: not fleet.feed.healthy)
        assert fleet.mirror.mode("node") == INDEX_MODE_STALE
    finally:
        fleet.server.thaw()
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}


async def test_while_redis_is_away_another_feed_makes_a_node_exact(fleet):
    """And no further attempt to reach Redis makes it stale again."""
    log = await fleet.up("node")
    fleet.server.stop()
    await eventually(lambda: fleet.mirror.mode("node") == INDEX_MODE_STALE)
    log.append(stored(A))
    batch = log.subscribe().take()
    assert fleet.mirror.apply("node", log.epoch, batch)
    failures = fleet.feed._backoff.failures
    await eventually(lambda: fleet.feed._backoff.failures > failures + 1)
    assert fleet.mirror.mode("node") == INDEX_MODE_EXACT
    fleet.server.start()
    await fleet.settled("node")


async def test_a_publisher_that_falls_silent_makes_its_node_stale(fleet):
    log = await fleet.up("node")
    log.append(stored(A))
    await fleet.settled("node")
    _, task = fleet.publishers["node"]
    task.cancel()
    await eventually(lambda: fleet.mirror.mode("node") == INDEX_MODE_STALE, SILENCE + 5)
    assert fleet.feed.healthy


async def test_redis_that_is_away_at_the_start(unwatched):
    unwatched.server.stop()
    async with unwatched as fleet:
        log = await fleet.start("node")
        fleet.watch("node")
        log.append(stored(A))
        await asyncio.sleep(0.3)
        assert not fleet.feed.healthy
        fleet.server.start()
        await fleet.settled("node")
        assert fleet.mirror.match(KEYS) == {"node": Match(1, 0)}


async def test_an_unreachable_redis_breaks_neither_side():
    url = f"redis://127.0.0.1:{free_port()}/0"
    publisher = RedisPublisher(url, GROUP, "node", 1, EventLog(1), timeout=0.2)
    feed = RedisFeed(url, GROUP, Mirror(), timeout=0.2)
    feed.track("node", 1)
    tasks = [asyncio.create_task(publisher.run()), asyncio.create_task(feed.run())]
    await asyncio.sleep(0.3)
    assert not any(task.done() for task in tasks)
    for task in tasks:
        await stop(task)
    await publisher.aclose()


async def test_both_sides_end_whenever_they_are_cancelled(unwatched):
    for steps in range(1, 60, 2):
        async with asyncio.timeout(5):
            async with RedisFleet(unwatched.server, unwatched.shards) as fleet:
                (await fleet.start("node")).append(stored(A))
                fleet.watch("node")
                for _ in range(steps):
                    await asyncio.sleep(0)


async def test_keys_of_a_node_that_ended_are_gone(fleet):
    await fleet.up("node")
    key = fleet.held_key("node")
    assert await fleet.redis.exists(key)
    await fleet.end("node")
    assert not await fleet.redis.exists(key)


async def test_keys_of_a_node_that_died_expire(fleet):
    await fleet.up("node")
    key, stream = fleet.held_key("node"), fleet.stream_key("node")
    await fleet.kill("node")
    assert 0 < await fleet.redis.pttl(key) <= 30_000
    assert 0 < await fleet.redis.pttl(stream) <= 30_000


async def test_foreign_entries_are_passed_over(fleet):
    log = await fleet.up("node")
    stream = fleet.stream_key("node")
    good = (await fleet.redis.xrange(stream))[-1][1]
    await fleet.redis.xadd(stream, {b"what": b"is this"})
    await fleet.redis.xadd(stream, {**good, b"h": b"short"})
    await fleet.redis.xadd(stream, {**good, b"n": b"\xff"})
    await fleet.redis.xadd(stream, {**good, b"p": b"nonsense"})
    await fleet.redis.hset(fleet.held_key("node"), b"\x09" + A, b"")
    log.append(stored(A))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(1, 0)}
    assert fleet.feed.healthy


async def test_nothing_walks_the_keyspace(fleet):
    log = await fleet.up("node")
    log.append(stored(A))
    await fleet.settled("node")
    used = set()
    for client in await fleet.redis.clients():
        used |= set(await client.info("commandstats"))
    assert not used & {"cmdstat_keys", "cmdstat_scan"}


async def test_nodes_of_all_shards_are_followed(unwatched):
    unwatched.shards = SHARDS
    async with unwatched as fleet:
        names = [f"node-{number}" for number in range(24)]
        assert {shard_of(name, SHARDS) for name in names} == set(range(SHARDS))
        for name in names:
            (await fleet.start(name)).append(stored(A, B))
            fleet.watch(name)
        for name in names:
            await fleet.settled(name)
        assert fleet.mirror.match(KEYS) == dict.fromkeys(names, Match(2, 0))
        keys = {fleet.held_key(name) for name in names} | {fleet.stream_key(n) for n in names}
        tags = {key[: key.index(b"}") + 1] for key in keys}
        assert tags == {b"{%s:%d}" % (GROUP.encode(), shard) for shard in range(SHARDS)}
        assert all([await client.dbsize() for client in await fleet.redis.clients()])


async def test_a_large_cache_loads_while_it_changes(fleet):
    keys = [number.to_bytes(16) for number in range(6000)]
    log = await fleet.start("node", max_pending=100_000)
    log.append(stored(*keys))
    await fleet.published("node")
    fleet.watch("node")
    for key in keys[5000:]:
        log.append([Removed(key, TIER_GPU)])
        await asyncio.sleep(0)
    await fleet.settled("node")
    assert fleet.mirror.match(keys) == {"node": Match(5000, 0)}
    assert fleet.mirror.size("node") == 5000
    assert fleet.mirror.mode("node") == INDEX_MODE_EXACT


async def _fields(fleet, count):
    with contextlib.suppress(RedisError):  # a restart cut the connection
        return await fleet.redis.hlen(fleet.held_key("node")) == count

"""What a router sees through a feed. One suite, run on all: direct, a real Redis, and a real Redis
Cluster.
"""

import pytest

from kvmesh.v1.cache_node_pb2 import TIER_CPU, TIER_GPU
from kvmesh.v1.fleet_pb2 import INDEX_MODE_BLIND, INDEX_MODE_EXACT, INDEX_MODE_STALE
from prefix_index.events import Cleared, Removed, Stored
from prefix_index.mirror import Match
from tests.prefix_index.harness import SHARDS, DirectFleet, RedisFleet, eventually
from tests.prefix_index.strategies import KEYS
from tests.redis_cluster_fixture import redis_cluster  # noqa: F401
from tests.redis_fixture import redis_server  # noqa: F401

A, B, C = KEYS[:3]


@pytest.fixture(params=["direct", "redis", "cluster"])
async def fleet(request):
    match request.param:
        case "direct":
            made = DirectFleet()
        case "redis":
            made = RedisFleet(request.getfixturevalue("redis_server"))
        case "cluster":
            made = RedisFleet(request.getfixturevalue("redis_cluster"), shards=SHARDS)
            await made.empty()
    async with made:
        yield made


def stored(*keys, tier=TIER_GPU):
    return [Stored(key, tier) for key in keys]


async def test_what_a_node_stores_is_matched(fleet):
    log = await fleet.up("node")
    assert fleet.mirror.match(KEYS) == {}
    log.append(stored(A, B))
    log.append(stored(C, tier=TIER_CPU))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 1)}
    assert fleet.mirror.size("node") == 3


async def test_a_router_that_comes_late_learns_all(fleet):
    log = await fleet.start("node")
    log.append(stored(A, B))
    log.append([Removed(B, TIER_GPU)])
    assert fleet.mirror.mode("node") == INDEX_MODE_BLIND
    fleet.watch("node")
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(1, 0)}


async def test_a_block_moves_between_tiers(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B))
    log.append([*stored(A, tier=TIER_CPU), Removed(A, TIER_GPU)])
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(1, 1)}


async def test_r5_what_one_node_evicts_another_keeps(fleet):
    one, other = await fleet.up("one"), await fleet.up("other")
    one.append(stored(A, B))
    other.append(stored(A, B))
    one.append([Removed(B, TIER_GPU)])
    await fleet.settled("one")
    await fleet.settled("other")
    assert fleet.mirror.match(KEYS) == {"one": Match(1, 0), "other": Match(2, 0)}


async def test_r3_entries_of_an_old_epoch_count_for_nothing_at_once(fleet):
    old = await fleet.up("node", epoch=1)
    old.append(stored(A, B))
    await fleet.settled("node")

    new = await fleet.start("node", epoch=2)
    fleet.watch("node")
    assert fleet.mirror.match(KEYS) == {}
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {}
    new.append(stored(A))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(1, 0)}


async def test_r4_lost_events_are_noticed_and_made_good(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B, C))
    await fleet.settled("node")
    assert fleet.mirror.modes["node"] == {INDEX_MODE_EXACT}

    async with fleet.losing("node"):
        log.append([Removed(B, TIER_GPU)])

    await eventually(lambda: fleet.mirror.match(KEYS) == {"node": Match(1, 0)})
    await fleet.settled("node")
    assert INDEX_MODE_STALE in fleet.mirror.modes["node"]


async def test_messages_that_come_twice_do_no_harm(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B))
    log.append([Removed(B, TIER_GPU)])
    await fleet.settled("node")
    await fleet.repeat("node")
    log.append(stored(C))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(1, 0)}
    assert fleet.mirror.size("node") == 2


async def test_copies_of_a_block_go_with_the_last(fleet):
    log = await fleet.up("node")
    log.append(stored(A, A))
    log.append([Removed(A, TIER_GPU)])
    log.append(stored(B))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}
    log.append([Removed(A, TIER_GPU)])
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {}


async def test_a_cleared_cache_is_empty_but_for_what_came_after(fleet):
    log = await fleet.up("node")
    log.append([*stored(A, B), *stored(C, tier=TIER_CPU)])
    await fleet.settled("node")
    log.append([Cleared(), *stored(A)])
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(1, 0)}
    assert fleet.mirror.size("node") == 1
    # A router that starts now sees the same.
    fleet.unwatch("node")
    fleet.watch("node")
    log.append(stored(B))
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}


async def test_a_burst_beyond_the_bound_arrives_as_a_snapshot(fleet):
    log = await fleet.up("node", max_pending=4)
    burst = [number.to_bytes(16) for number in range(50)]
    for key in burst:
        log.append(stored(key))
    log.append([Removed(burst[30], TIER_GPU)])
    await fleet.settled("node")
    assert fleet.mirror.match(burst) == {"node": Match(30, 0)}
    assert fleet.mirror.size("node") == 49


async def test_a_node_that_is_gone_is_gone(fleet):
    log = await fleet.up("node")
    log.append(stored(A))
    await fleet.settled("node")
    fleet.unwatch("node")
    fleet.unwatch("node")
    assert fleet.mirror.match(KEYS) == {}
    assert fleet.mirror.mode("node") == INDEX_MODE_BLIND
    log.append(stored(B))
    other = await fleet.up("other")
    other.append(stored(A))
    await fleet.settled("other")
    assert fleet.mirror.match(KEYS) == {"other": Match(1, 0)}
    assert fleet.feed.healthy

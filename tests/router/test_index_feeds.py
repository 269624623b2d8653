"""The router's index with a real Redis: fed by it, and by the nodes while it is away."""

import asyncio
import contextlib

from prefix_index.redis_publisher import RedisPublisher
from tests.redis_fixture import redis_server
from tests.router.asking import answer, request
from tests.router.fleet_fixture import eventually, running_fleet
from tests.router.stub_node import StubNode

__all__ = ["redis_server"]


@contextlib.asynccontextmanager
async def published(node, url):
    """`node` writes its blocks to Redis too."""
    publisher = RedisPublisher(url, "kvmesh", node.name, node.info.epoch, node.log)
    task = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publisher.aclose()


@contextlib.asynccontextmanager
async def fleet_on_redis(node, url):
    async with published(node, url), running_fleet(node, redis_url=url) as fleet:
        yield fleet


def indexed(fleet):
    return fleet.app.view.nodes()[0].indexed_blocks


async def test_redis_feeds_the_index_and_the_node_is_not_asked_for_events(redis_server):
    node = StubNode("node-0")
    async with fleet_on_redis(node, redis_server.url) as fleet:
        await eventually(lambda: node.with_events is False)
        await answer(fleet, request("x" * 64))
        await eventually(lambda: indexed(fleet) == 4)
        frames = await answer(fleet, request("x" * 64))
        assert frames[0].route.predicted_cached_tokens == 48
        assert fleet.app.view.nodes()[0].index_mode == 1  # EXACT


async def test_r12_redis_goes_away_and_comes_back_empty(redis_server):
    node = StubNode("node-0")
    async with fleet_on_redis(node, redis_server.url) as fleet:
        await answer(fleet, request("x" * 64))
        await eventually(lambda: node.with_events is False and indexed(fleet) == 4)
        redis_server.stop()
        await eventually(lambda: node.with_events is True, 5)
        await answer(fleet, request("y" * 64))  # seen without Redis
        await eventually(lambda: indexed(fleet) == 8)
        redis_server.start()
        await eventually(lambda: node.with_events is False, 10)
        await answer(fleet, request("z" * 64))
        await eventually(lambda: indexed(fleet) == 12, 5)
        assert fleet.health(0) == "NODE_HEALTH_UP"


async def test_a_node_that_does_not_write_to_redis_is_asked_itself(redis_server):
    node = StubNode("node-0")
    async with running_fleet(node, redis_url=redis_server.url) as fleet:
        await eventually(lambda: node.with_events is False)
        fleet.app._index._redis._silence = 0.1
        await eventually(lambda: node.with_events is True, 5)
        await answer(fleet, request("x" * 64))
        await eventually(lambda: indexed(fleet) == 4)
        assert fleet.app.view.nodes()[0].index_mode == 1  # EXACT
        fleet.app._index._redis._silence = 10.0
        async with published(node, redis_server.url):
            await eventually(lambda: node.with_events is False, 5)
            await answer(fleet, request("y" * 64))
            await eventually(lambda: indexed(fleet) == 8)

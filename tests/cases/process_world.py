"""Two routers, three nodes and one Redis, each a process of its own, and what tests ask of them."""

import asyncio
import signal
from collections import Counter
from types import SimpleNamespace

import grpc
import pytest
import pytest_asyncio

from kvmesh.errors import from_rpc_error
from kvmesh.v1 import fleet_pb2
from tests.links import Link
from tests.redis_fixture import RedisServer, require_redis
from tests.router.admission_fixture import metric, tenants_file, who
from tests.router.asking import request
from tests.router.node_process import NodeProcess
from tests.router.process_fleet import requests_on, router_processes, until

Code = grpc.StatusCode
NAMES = ("node-0", "node-1", "node-2")
BLOCKS = 200  # of each node
LARGE = 2900  # tokens of an output that a node has room for once
FREE = who("free")
STREAM = "{kvmesh:0}:events"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory):
    """The first router reaches Redis and node-0 over links that can be cut."""
    require_redis()
    redis = RedisServer(tmp_path_factory.mktemp("redis"))
    redis.start()
    nodes = [NodeProcess(name, num_blocks=BLOCKS, redis=redis.url) for name in NAMES]
    to_redis, to_node = await Link(redis.port).start(), await Link(nodes[0].port).start()
    tenants = {"free": {}, "acme": {"concurrency": 3}}
    tenants["hasty"] = {"requests_per_second": 1e-3, "burst_seconds": 10_000}
    flags = {"tenants": tenants_file(tmp_path_factory.mktemp("tenants"), **tenants)}
    flags |= {"slow_start": 0.1, "node_silence": 1.0, "stream_silence": 2.0}
    others = [node.address for node in nodes[1:]]
    ours = f"redis://{to_redis.address}/0"
    async with (
        router_processes(1, [to_node.address, *others], redis=ours, **flags) as (one,),
        router_processes(1, [nodes[0].address, *others], redis=redis.url, **flags) as (two,),
    ):
        yield SimpleNamespace(
            redis=redis,
            nodes=nodes,
            to_redis=to_redis,
            to_node=to_node,
            routers=(one, two),
            flags=flags,
        )
    for node in nodes:
        node.close()
    for link in (to_redis, to_node):
        await link.stop()
    redis.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(world):
    """All of it well and idle, before and after."""
    await until(lambda: well(world))
    yield world
    for router in world.routers:
        router.signal(signal.SIGCONT)
    for link in (world.to_redis, world.to_node):
        link.release()
        link.open()
    world.nodes[:] = [each.again() if each.ended else each for each in world.nodes]
    await until(lambda: well(world))
    for each in world.nodes:
        assert await requests_on(each.address) == 0


async def well(world):
    for router in world.routers:
        if not await router.up(*NAMES) or await router.in_flight():
            return False
        if {await router.mode(name) for name in NAMES} != {"exact"}:
            return False
    return True


async def ask(router, prompt="hello", tokens=5, stub="", tenant="free", **fields):
    """All frames of an answer; `stub` scripts the node."""
    metadata = (*who(tenant), ("x-stub", stub))
    call = router.inference.Generate(
        request(prompt, tokens, **fields), metadata=metadata, timeout=40
    )
    return [frame async for frame in call]


async def refusal(router, **fields):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(router, **fields)
    return from_rpc_error(caught.value)


async def cached_on(router, prompt):
    """By node, as the router believes."""
    explained = fleet_pb2.ExplainRequest(request=request(prompt))
    route = (await router.fleet.Explain(explained, metadata=FREE, timeout=20)).route
    return {each.node: each.cached.gpu for each in route.candidates}


async def served_by(fleet, prompts, **fields):
    """Who served `prompts`, which run at the same time, every other one through each router."""
    work = [ask(fleet.routers[place % 2], each, **fields) for place, each in enumerate(prompts)]
    return Counter(frames[-1].summary.node for frames in await asyncio.gather(*work))


async def until_known(fleet, prompt, node):
    for router in fleet.routers:
        await until(lambda router=router: knows(router, prompt, node))


async def knows(router, prompt, node):
    """All blocks of it that can be hit; a character is a token."""
    return (await cached_on(router, prompt)).get(node) == (len(prompt) - 1) // 16 * 16


async def gone(router, name):
    return not await router.up(name)


async def has_mode(router, node, mode):
    return await router.mode(node) == mode


async def agree(one, other):
    def sizes(nodes):
        return {name: node.indexed_blocks for name, node in nodes.items()}

    return sizes(await one.nodes()) == sizes(await other.nodes())


async def one_of(router, prompt):
    return (await ask(router, prompt))[-1].summary.node


async def all_free(fleet):
    counts = [await requests_on(node.address) for node in fleet.nodes]
    counts += [await router.in_flight() for router in fleet.routers]
    return not any(counts) and not await metric(fleet.routers[0], "queue_depth")


async def requests_running(fleet, count):
    return sum([await requests_on(node.address) for node in fleet.nodes]) == count

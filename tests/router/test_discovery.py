"""Nodes behind a name: found when they come, kept while they live, forgotten when they are gone."""

import asyncio
import contextlib

import pytest

from router.app import RouterApp
from router.discovery import GRACE, Discovery, look_up
from router.node import Health
from router.node_names import Name
from router.registry import Registry
from tests.router.fleet_fixture import RunningFleet, config, eventually
from tests.router.stub_node import StubNode
from tests.router.test_generate_grpc import answer, request


class Names:
    """A resolver that is told what to say."""

    def __init__(self):
        self.listed = {}

    async def __call__(self, host, port):
        if host not in self.listed:
            raise OSError("name or service not known")
        return [f"{address}:{port}" for address in self.listed[host]]


class Watched:
    """Counts who is being watched."""

    def __init__(self):
        self.addresses = []

    def __call__(self, node):
        return asyncio.create_task(self._follow(node.address))

    async def _follow(self, address):
        self.addresses.append(address)
        try:
            await asyncio.Event().wait()
        finally:
            self.addresses.remove(address)


@pytest.fixture
def names():
    return Names()


@pytest.fixture
async def fleet(names):
    registry, watched, now = Registry([]), Watched(), [0.0]
    targets = [Name("a", 7), Name("b", 8)]
    discovery = Discovery(targets, registry, watched, names, lambda: now[0])

    async def look(seconds=0.0):
        now[0] += seconds
        await discovery.look()
        await asyncio.sleep(0)
        return sorted(node.address for node in registry.nodes)

    yield look, registry, watched
    for node in list(registry.nodes):
        await registry.remove(node)


async def test_every_address_is_a_node_once(names, fleet):
    look, _, watched = fleet
    names.listed = {"a": ["10.0.0.1"], "b": []}
    assert await look() == ["10.0.0.1:7"]
    names.listed = {"a": ["10.0.0.1", "10.0.0.2", "10.0.0.2"], "b": ["10.0.0.1"]}
    assert await look() == ["10.0.0.1:7", "10.0.0.1:8", "10.0.0.2:7"]
    assert sorted(watched.addresses) == ["10.0.0.1:7", "10.0.0.1:8", "10.0.0.2:7"]


async def test_one_that_is_no_longer_listed_stays_while_it_lives(names, fleet):
    look, registry, watched = fleet
    names.listed = {"a": ["10.0.0.1", "10.0.0.2"], "b": []}
    await look()
    registry.set_health(registry.nodes[0], Health.NODE_HEALTH_UP)
    names.listed["a"] = []
    assert await look() == ["10.0.0.1:7", "10.0.0.2:7"]
    assert await look(GRACE) == ["10.0.0.1:7"]
    registry.set_health(registry.nodes[0], Health.NODE_HEALTH_DOWN)
    assert await look(GRACE) == ["10.0.0.1:7"], "away since now only"
    assert await look(GRACE) == []
    assert watched.addresses == []
    names.listed["a"] = ["10.0.0.1"]
    assert await look() == ["10.0.0.1:7"], "and found again"


async def test_one_that_is_listed_again_in_time_is_the_same(names, fleet):
    look, registry, _ = fleet
    names.listed = {"a": ["10.0.0.1"], "b": []}
    await look()
    node = registry.nodes[0]
    names.listed["a"] = []
    await look()
    await look(GRACE - 1)
    names.listed["a"] = ["10.0.0.1"]
    await look(2)
    names.listed["a"] = []
    await look()
    await look(GRACE - 1)
    assert registry.nodes == [node]


async def test_a_name_that_cannot_be_looked_up_takes_nobody_away(names, fleet):
    look, *_ = fleet
    names.listed = {"a": ["10.0.0.1"], "b": ["10.0.0.2"]}
    await look()
    del names.listed["a"]
    await look()
    assert await look(2 * GRACE) == ["10.0.0.1:7", "10.0.0.2:8"]


async def test_addresses_of_a_real_name():
    assert "127.0.0.1:50061" in await look_up("localhost", 50061)
    assert await look_up("::1", 50061) == ["[::1]:50061"]
    with pytest.raises(OSError, match=r"\S"):
        await look_up("no-such-host.invalid", 1)


@pytest.mark.parametrize("target", ["dns:", "dns:node", "dns::1", "dns:node:0", "dns:node:x"])
def test_a_name_without_host_or_port_is_refused(target):
    with pytest.raises(ValueError, match=r"nodes: .* must be dns:HOST:PORT"):
        config(target)


async def test_a_router_serves_from_the_nodes_behind_a_name():
    node = await StubNode("node-0").start()
    target = f"dns:localhost:{node.port}"
    async with started(target, node) as fleet:
        await eventually(lambda: any(n.health == 2 for n in fleet.app.view.nodes()), 5)
        frames = await answer(fleet, request("x" * 20, 1))
        assert frames[0].route.node == "node-0"


async def test_a_router_whose_name_has_nobody_yet_waits():
    async with started("dns:no-such-host.invalid:1") as fleet:
        reply = await fleet.http.get("/health")
        assert reply.status_code == 503
        assert fleet.app.view.nodes() == []


@contextlib.asynccontextmanager
async def started(target, *nodes):
    app = RouterApp(config(target))
    await app.start()
    fleet = RunningFleet(app, list(nodes))
    try:
        yield fleet
    finally:
        await fleet.close()

"""Nodes behind a name: found when they come, kept while they live, forgotten when they are gone."""

import asyncio
import contextlib
import socket
import threading

import pytest

from router.app import RouterApp
from router.discovery import GRACE, Discovery, look_up
from router.node import Health
from router.node_names import Name
from router.registry import Registry
from tests.router.asking import answer, request
from tests.router.fleet_fixture import RunningFleet, config, eventually
from tests.router.stub_node import StubNode, node_info


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
    for wrong in ("no-such-host.invalid", "empty..label", f"{'long' * 16}.label"):
        with pytest.raises(OSError, match=r"\S"):
            await look_up(wrong, 1)


def test_nobody_waits_at_the_end_for_a_look_up_that_hangs(monkeypatch):
    asked, release = threading.Event(), threading.Event()

    def hang(*_args, **_kwargs):
        asked.set()
        release.wait(20)
        return []

    async def leave():
        looking = asyncio.create_task(look_up("slow", 1))
        await eventually(asked.is_set)
        looking.cancel()

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    left = threading.Thread(target=asyncio.run, args=(leave(),))
    left.start()
    left.join(5)
    assert not left.is_alive()
    release.set()


def test_an_ipv6_address_may_be_in_brackets():
    assert Name.parse("dns:[::1]:50061") == Name.parse("dns:::1:50061") == Name("::1", 50061)


@pytest.mark.parametrize(
    "target", ["dns:", "dns:node", "dns::1", "dns:[]:1", "dns:node:0", "dns:node:x"]
)
def test_a_name_without_host_or_port_is_refused(target):
    with pytest.raises(ValueError, match=r"nodes: .* must be dns:HOST:PORT"):
        config(target)


async def test_a_router_serves_from_the_nodes_behind_a_name():
    node = await StubNode("node-0").start()
    target = f"dns:localhost:{node.port}"
    async with started((target,), node) as fleet:
        await eventually(lambda: any(n.health == 2 for n in fleet.app.view.nodes()), 5)
        frames = await answer(fleet, request("x" * 20, 1))
        assert frames[0].route.node == "node-0"


async def test_a_node_that_is_listed_by_address_too_is_one_node():
    node = await StubNode("node-0").start()
    async with started((node.address, f"dns:127.0.0.1:{node.port}"), node) as fleet:
        await eventually(lambda: fleet.app.view.serving, 5)
        await node.stop()
        await eventually(lambda: not fleet.app.view.serving, 5)
        await node.start(node.port)
        await eventually(lambda: fleet.app.view.serving, 5)
        assert [each.health for each in fleet.app.view.nodes()] == [Health.NODE_HEALTH_UP]


async def test_a_second_address_of_a_node_says_so():
    node = await StubNode("node-0").start()
    async with started((node.address, f"localhost:{node.port}"), node) as fleet:
        refused = Health.NODE_HEALTH_REFUSED
        await eventually(lambda: refused in [n.health for n in fleet.app.view.nodes()], 5)
        (detail,) = [n.detail for n in fleet.app.view.nodes() if n.health == refused]
        assert detail.startswith("it is node-0 at another address")


async def test_a_node_that_comes_back_has_its_name_before_its_first_state():
    registry = Registry(["10.0.0.1:7", "10.0.0.2:7"])
    first, second = registry.nodes
    registry.set_health(first, Health.NODE_HEALTH_DOWN)
    registry.accept(first, node_info("node-0", 1, 64))
    assert registry.name_taken("node-0", second) is first
    assert not registry.up
    await registry.close()


async def test_a_router_whose_name_has_nobody_yet_waits():
    async with started(("dns:no-such-host.invalid:1",)) as fleet:
        reply = await fleet.http.get("/health")
        assert reply.status_code == 503
        assert fleet.app.view.nodes() == []


@contextlib.asynccontextmanager
async def started(targets, *nodes):
    app = RouterApp(config(*targets))
    await app.start()
    fleet = RunningFleet(app, list(nodes))
    try:
        yield fleet
    finally:
        await fleet.close()

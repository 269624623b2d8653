"""A Redis Cluster of three servers, for the tests of a module.

A test module imports the fixture by name:

    from tests.redis_cluster_fixture import redis_cluster
"""

import subprocess
import time
from pathlib import Path

import pytest

from tests.redis_fixture import RedisServer, free_port, require_redis

SLOTS = 16384
DEADLINE = 20.0  # seconds to come up; a server takes two to trust the others


class _Server(RedisServer):
    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.bus_port = str(free_port())
        options = ("--cluster-enabled", "yes", "--cluster-port", self.bus_port)
        super().__init__(directory, *options, "--cluster-node-timeout", "2000")


class RedisCluster:
    """Three masters without replicas. Stops, starts and empties all of them at once; each can be
    treated alone too.
    """

    def __init__(self, directory: Path) -> None:
        self.servers = [_Server(directory / str(number)) for number in range(3)]
        self._met = False

    @property
    def url(self) -> str:
        """With a first seed that nobody listens on."""
        ports = (free_port(), self.servers[1].port, self.servers[0].port)
        return "redis://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def start(self) -> None:
        for server in self.servers:
            server.start()
        if not self._met:
            self._meet()
            self._met = True
        self._wait_until_whole()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def restart_empty(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        for server in self.servers:
            server.freeze()

    def thaw(self) -> None:
        for server in self.servers:
            server.thaw()

    def move_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """With its keys, as an operator does who spreads the load anew."""
        ids = {server: ask(server, "cluster", "myid") for server in (source, target)}
        ask(target, "cluster", "setslot", str(slot), "importing", ids[source])
        ask(source, "cluster", "setslot", str(slot), "migrating", ids[target])
        while keys := ask(source, "cluster", "getkeysinslot", str(slot), "100").split():
            where = ("127.0.0.1", str(target.port), "", "0", "5000", "replace", "keys")
            ask(source, "migrate", *where, *keys)
        for server in (target, source):
            ask(server, "cluster", "setslot", str(slot), "node", ids[target])

    def owner(self, slot: int) -> RedisServer:
        """The server that has the slot now."""
        return next(server for server in self.servers if _holds(server, slot))

    def _meet(self) -> None:
        first, *others = self.servers
        for number, server in enumerate(self.servers):
            bounds = [SLOTS * place // 3 for place in (number, number + 1)]
            ask(server, "cluster", "addslotsrange", str(bounds[0]), str(bounds[1] - 1))
            ask(server, "cluster", "set-config-epoch", str(number + 1))
        for server in others:
            ask(server, "cluster", "meet", "127.0.0.1", str(first.port), first.bus_port)

    def _wait_until_whole(self) -> None:
        end = time.monotonic() + DEADLINE
        while not all(_whole(ask(server, "cluster", "info")) for server in self.servers):
            assert time.monotonic() < end, "the cluster does not come up"
            time.sleep(0.02)


def ask(server: RedisServer, *command: str) -> str:
    """What the server answers, as redis-cli shows it."""
    shown = subprocess.run(
        ["redis-cli", "-p", str(server.port), *command], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert not shown.startswith(("ERR", "(error)")), shown
    return shown


def _holds(server: RedisServer, slot: int) -> bool:
    nodes = ask(server, "cluster", "nodes").splitlines()
    mine = next(line for line in nodes if "myself" in line).split()[8:]
    ranges = [part.split("-") for part in mine if not part.startswith("[")]
    return any(int(each[0]) <= slot <= int(each[-1]) for each in ranges)


def _whole(info: str) -> bool:
    return "cluster_state:ok" in info and "cluster_known_nodes:3" in info


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory):
    """A running cluster, see `require_redis`. Tests leave it running, in whatever content."""
    require_redis()
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"))
    cluster.start()
    yield cluster
    cluster.stop()

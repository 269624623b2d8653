"""Which servers hold the index, and who may read it: moved slots, dead servers, users, TLS."""

import asyncio
from types import SimpleNamespace

import pytest
import uvloop
from redis.crc import key_slot
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from kvmesh.v1.cache_node_pb2 import TIER_GPU
from kvmesh.v1.fleet_pb2 import INDEX_MODE_STALE
from prefix_index.events import Stored
from prefix_index.mirror import Match
from prefix_index.redis_shards import FAILURES, RedisShards
from tests.certificates import Authority
from tests.links import Link
from tests.prefix_index.harness import SHARDS, RedisFleet, eventually
from tests.prefix_index.strategies import KEYS
from tests.redis_cluster_fixture import ask, redis_cluster
from tests.redis_fixture import RedisServer, free_port, redis_server, require_redis

__all__ = ["redis_cluster", "redis_server"]

A, B, C = KEYS[:3]

# What README tells operators to grant, for the group "test".
RIGHTS = (
    "~{test:* resetchannels -@all +multi +exec +hset +hget +hmget +hdel +hscan +unlink +rename "
    "+pexpire +xadd +xread +xrevrange +cluster|slots"
)


def stored(*keys):
    return [Stored(key, TIER_GPU) for key in keys]


@pytest.fixture
async def clustered(redis_cluster):
    made = RedisFleet(redis_cluster, shards=SHARDS)
    await made.empty()
    async with made:
        yield made


async def test_a_slot_that_moves_is_followed(clustered):
    log = await clustered.up("node")
    log.append(stored(A, B))
    await clustered.settled("node")
    slot, cluster = key_slot(clustered.held_key("node")), clustered.server
    source = cluster.owner(slot)
    target = next(each for each in cluster.servers if each is not source)
    cluster.move_slot(slot, source, target)
    log.append(stored(C))
    await clustered.settled("node")
    assert clustered.mirror.match(KEYS) == {"node": Match(3, 0)}
    assert cluster.owner(slot) is target
    await clustered.published("node")


async def test_one_server_that_dies_makes_the_feed_unhealthy_until_it_is_back(clustered):
    """Nodes of other servers are stale too: while any is away, the nodes tell directly."""
    logs = [await clustered.up(f"node-{number}") for number in range(6)]
    clustered.server.servers[2].stop()
    await eventually(lambda: not clustered.feed.healthy)
    assert not any(clustered.feed.feeds(name) for name in clustered.logs)
    assert {clustered.mirror.mode(name) for name in clustered.logs} == {INDEX_MODE_STALE}
    clustered.server.start()
    for name, log in zip(clustered.logs, logs, strict=True):
        log.append(stored(A))
        await clustered.settled(name)
    assert clustered.mirror.match(KEYS) == dict.fromkeys(clustered.logs, Match(1, 0))
    assert all(clustered.feed.feeds(name) for name in clustered.logs)


async def test_a_user_with_few_rights_is_enough(redis_server):
    _add_user(redis_server, "kvmesh", "s3cret!", RIGHTS)
    await _works(redis_server.port, f"redis://kvmesh:s3cret%21@127.0.0.1:{redis_server.port}")


async def test_a_user_of_a_cluster_needs_no_more(redis_cluster):
    for server in redis_cluster.servers:
        _add_user(server, "kvmesh", "s3cret!", RIGHTS)
    async with RedisFleet(redis_cluster, shards=SHARDS) as plain:
        await plain.empty()
    url = redis_cluster.url.replace("redis://", "redis://kvmesh:s3cret%21@")
    async with RedisFleet(SimpleNamespace(url=url, servers=redis_cluster.servers)) as fleet:
        await _settles(fleet)


async def test_a_password_may_lie_in_a_file(redis_server, tmp_path):
    _add_user(redis_server, "kvmesh", "s3cret/", RIGHTS)
    (tmp_path / "password").write_text("s3cret/\n")
    where = f"127.0.0.1:{redis_server.port}?password_file={tmp_path / 'password'}"
    await _works(redis_server.port, f"redis://kvmesh@{where}")


async def test_a_wrong_password_is_a_failure_like_any_other(redis_server):
    _add_user(redis_server, "kvmesh", "s3cret!", RIGHTS)
    servers = RedisShards(f"redis://kvmesh:other@127.0.0.1:{redis_server.port}")
    with pytest.raises(RedisError, match="invalid username-password"):
        await servers.client(A)
    await servers.aclose()


async def test_tls_with_certificates_on_both_sides(tmp_path):
    require_redis()
    authority, tls_port = Authority(tmp_path), free_port()
    authority.issue("redis")
    authority.issue("router")
    files = (f"{tmp_path}/redis.pem", f"{tmp_path}/redis.key", f"{tmp_path}/ca.pem")
    options = ("--tls-port", str(tls_port), "--tls-cert-file", files[0])
    server = RedisServer(
        tmp_path, *options, "--tls-key-file", files[1], "--tls-ca-cert-file", files[2]
    )
    server.start()
    try:
        ours = f"ssl_certfile={tmp_path}/router.pem&ssl_keyfile={tmp_path}/router.key"
        url = f"rediss://127.0.0.1:{tls_port}?ssl_ca_certs={files[2]}&{ours}"
        await _works(tls_port, url)
        stranger = RedisShards(f"rediss://127.0.0.1:{tls_port}")
        with pytest.raises((RedisError, OSError), match=r"(?i)certificate"):
            await stranger.client(A)
        await stranger.aclose()
    finally:
        server.stop()


async def _works(port, url):
    async with RedisFleet(SimpleNamespace(url=url, port=port)) as fleet:
        await _settles(fleet)


async def _settles(fleet):
    log = await fleet.up("node")
    log.append(stored(A, B))
    await fleet.settled("node")
    fleet.unwatch("node")
    fleet.watch("node")  # reads the HASH
    await fleet.settled("node")
    assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}
    await fleet.end("node")
    assert fleet.feed.healthy


def test_what_a_cut_connection_raises_on_the_routers_loop_is_a_failure_like_any_other(redis_server):
    """uvloop answers with an exception of its own when it has seen the reset before redis-py has:
    about one call in ten.
    """

    async def cuts():
        link = await Link(redis_server.port).start()
        raised = []
        for number in range(60):
            servers = RedisShards(f"redis://{link.address}/0")
            client = await servers.client(A)
            waiting = asyncio.create_task(client.xread({b"stream": b"$"}, block=500))
            await client.ping()
            link.cut()
            for _ in range(number % 7):
                await asyncio.sleep(0)
            calls = [waiting, *(asyncio.create_task(client.ping()) for _ in range(3))]
            raised += await asyncio.gather(*calls, return_exceptions=True)
            await servers.aclose()
        await link.stop()
        return [each for each in raised if isinstance(each, BaseException)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        raised = runner.run(cuts())
    assert {RuntimeError, RedisConnectionError} <= {type(each) for each in raised}
    assert all(isinstance(each, FAILURES) for each in raised)


@pytest.mark.parametrize("failure", FAILURES)
async def test_no_failure_ends_feed_or_publisher(redis_server, failure):
    async with RedisFleet(redis_server) as fleet:
        log = await fleet.up("node")
        publisher, _ = fleet.publishers["node"]
        failed = [
            fail_once(fleet.feed._servers, "execute_command", failure),
            fail_once(publisher._servers, "pipeline", failure),
        ]
        log.append(stored(A))
        await eventually(lambda: all(each.is_set() for each in failed))
        log.append(stored(B))
        await fleet.settled("node")
        assert fleet.mirror.match(KEYS) == {"node": Match(2, 0)}


def fail_once(servers, method, failure):
    """The next call of `method` fails; the event is set then."""
    failed = asyncio.Event()
    (client,) = servers._clients.values()

    def call(*_arguments, **_options):
        delattr(client, method)
        failed.set()
        raise failure("the connection has gone")

    setattr(client, method, call)
    return failed


def _add_user(server, name, password, rights):
    ask(server, "acl", "setuser", name, "on", f">{password}", *rights.split())

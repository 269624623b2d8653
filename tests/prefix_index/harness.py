"""A small fleet around one mirror: nodes with event logs, and either feed between them."""

import asyncio
import contextlib
import time

from redis.exceptions import RedisError

from kvmesh.v1.cache_node_pb2 import TIER_CPU, BlockEvents
from kvmesh.v1.fleet_pb2 import INDEX_MODE_EXACT
from prefix_index.direct_feed import DirectFeed
from prefix_index.event_log import EventLog
from prefix_index.events import Stored
from prefix_index.mirror import Mirror
from prefix_index.redis_feed import RedisFeed
from prefix_index.redis_layout import held_key, shard_of, stream_key
from prefix_index.redis_publisher import RedisPublisher
from prefix_index.redis_shards import RedisShards
from prefix_index.redis_url import Address

HEARTBEAT, TIMEOUT, SILENCE = 0.2, 0.5, 1.0
GROUP = "test"
SHARDS = 6  # on a cluster: two on each of its servers


async def eventually(condition, seconds=10.0):
    """Polls until `condition()` is true; awaits it when it is a coroutine."""
    end = time.monotonic() + seconds
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < end, "not within the deadline"
        await asyncio.sleep(0.01)


class WatchedMirror(Mirror):
    """Remembers each mode that a node has had."""

    def __init__(self):
        super().__init__()
        self.modes = {}

    def apply(self, node, epoch, batch):
        complete = super().apply(node, epoch, batch)
        self.modes.setdefault(node, set()).add(self.mode(node))
        return complete

    def mark_stale(self, node):
        super().mark_stale(node)
        self.modes.setdefault(node, set()).add(self.mode(node))


class Fleet:
    """What the tests drive; `start`, `losing` and `repeat` differ by feed."""

    def __init__(self):
        self.mirror = WatchedMirror()
        self.logs = {}
        self.watched = set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        for name in list(self.logs):
            await self.kill(name)

    async def start(self, name, epoch=1, max_pending=1000):
        """A node starts; the router has not seen it yet."""
        await self.kill(name)
        self.logs[name] = EventLog(epoch, max_pending=max_pending)
        self._connect(name)
        return self.logs[name]

    def watch(self, name):
        """The router's watcher sees the node."""
        self.watched.add(name)
        self.feed.track(name, self.logs[name].epoch)

    def unwatch(self, name):
        """The router's watcher gives the node up."""
        self.watched.discard(name)
        self.feed.untrack(name)

    async def up(self, name, epoch=1, max_pending=1000):
        log = await self.start(name, epoch, max_pending)
        self.watch(name)
        await self.settled(name)
        return log

    async def settled(self, name):
        """The mirror has all that the node's log says."""
        log = self.logs[name]
        await eventually(lambda: self.mirror.sequence(name) == log.sequence)
        await eventually(lambda: self.mirror.mode(name) == INDEX_MODE_EXACT)


class DirectFleet(Fleet):
    def __init__(self):
        super().__init__()
        self.feed = DirectFeed(self.mirror)
        self._streams = {}
        self._losing = set()
        self._last = {}

    def _connect(self, name):
        self._streams[name] = asyncio.create_task(self._watch_state(name, self.logs[name]))

    async def _watch_state(self, name, log):
        """The router's watcher and the node's WatchState in one."""
        subscription = log.subscribe()
        while True:
            batch = await subscription.next()
            if name in self._losing:
                continue
            self._last[name] = wire = batch.to_proto().SerializeToString()
            if name not in self.watched:
                subscription.restart()
                await asyncio.sleep(0.01)
            elif not self.feed.apply(name, log.epoch, BlockEvents.FromString(wire)):
                subscription.close()
                subscription = log.subscribe()

    async def kill(self, name):
        if self.logs.pop(name, None) is not None:
            self._streams.pop(name).cancel()

    @contextlib.asynccontextmanager
    async def losing(self, name):
        """What the node says inside never arrives."""
        self._losing.add(name)
        yield
        await asyncio.sleep(0.01)
        self._losing.discard(name)
        self.logs[name].append([Stored(b"after the loss..", TIER_CPU)])

    async def repeat(self, name):
        """The last message comes once more."""
        message = BlockEvents.FromString(self._last[name])
        assert self.feed.apply(name, self.logs[name].epoch, message)


class RedisFleet(Fleet):
    """On one Redis, or on a Redis Cluster."""

    def __init__(self, server, shards=1):
        super().__init__()
        self.server = server
        self.shards = shards
        self.redis = ByKey(server.url)
        ports = [each.port for each in getattr(server, "servers", [server])]
        self._proxies = {port: Proxy(port) for port in ports}
        self.publishers = {}

    async def __aenter__(self):
        for proxy in self._proxies.values():
            await proxy.start()
        self.feed = RedisFeed(
            self.server.url, GROUP, self.mirror, self.shards, silence=SILENCE, timeout=TIMEOUT
        )
        self.feed._servers = ThroughProxies(self.server.url, self._proxies)
        self._run = asyncio.create_task(self.feed.run())
        return self

    async def __aexit__(self, *_):
        await super().__aexit__()
        await stop(self._run)
        for proxy in self._proxies.values():
            await proxy.stop()
        await self.redis.aclose()

    async def empty(self):
        """Nothing is left in Redis."""
        for client in await self.redis.clients():
            await client.flushall()

    def held_key(self, name):
        shard = shard_of(name, self.shards)
        return held_key(GROUP, shard, name, self.logs[name].epoch)

    def stream_key(self, name):
        return stream_key(GROUP, shard_of(name, self.shards))

    def _connect(self, name, ttl=30.0):
        publisher = RedisPublisher(
            self.server.url,
            GROUP,
            name,
            self.logs[name].epoch,
            self.logs[name],
            self.shards,
            heartbeat=HEARTBEAT,
            timeout=TIMEOUT,
            ttl=ttl,
        )
        self.publishers[name] = (publisher, asyncio.create_task(publisher.run()))

    async def kill(self, name):
        """Without a clean end: its keys stay."""
        if self.logs.pop(name, None) is not None:
            publisher, task = self.publishers.pop(name)
            await stop(task)
            await publisher._servers.aclose()

    async def end(self, name):
        """A clean end."""
        publisher, task = self.publishers.pop(name)
        await stop(task)
        await publisher.aclose()
        del self.logs[name]

    async def published(self, name):
        """Redis has all that the node's log says."""
        expected = b"%d" % self.logs[name].sequence
        key = self.held_key(name)

        async def written():
            with contextlib.suppress(RedisError):  # a restart cut the connection
                return await self.redis.hget(key, "sequence") == expected

        await eventually(written)

    @contextlib.asynccontextmanager
    async def losing(self, name):
        """What the node says inside is trimmed away before the feed reads it."""
        await self.settled(name)
        for proxy in self._proxies.values():
            proxy.hold()
        # The feed's XREAD waits at the server, and gets this one.
        self.logs[name].append([Stored(b"before the loss.", TIER_CPU)])
        await self.published(name)
        yield
        await self.published(name)
        await self.redis.xtrim(self.stream_key(name), maxlen=0, approximate=False)
        for proxy in self._proxies.values():
            proxy.release()

    async def repeat(self, name):
        key = self.stream_key(name)
        await self.published(name)
        for _, fields in await self.redis.xrange(key):
            await self.redis.xadd(key, fields)


async def stop(task):
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class ByKey:
    """The commands of redis-py whose first argument is a key, wherever the key lies now."""

    def __init__(self, url):
        self._servers = RedisShards(url, TIMEOUT)

    def __getattr__(self, command):
        async def call(key, *arguments, **options):
            try:
                client = await self._servers.client(key)
                return await getattr(client, command)(key, *arguments, **options)
            except RedisError:
                self._servers.forget()
                raise

        return call

    async def clients(self):
        """One for each server."""
        await self._servers.client(b"")
        return [self._servers._client(each.master) for each in self._servers._ranges]

    async def aclose(self):
        await self._servers.aclose()


class ThroughProxies(RedisShards):
    """Reaches each server through the proxy of its port."""

    def __init__(self, url, proxies):
        super().__init__(url, TIMEOUT)
        self._proxies = proxies

    def _client(self, address):
        proxy = self._proxies.get(address.port)
        return super()._client(proxy.address if proxy else address)


class Proxy:
    """Stands between the feed and Redis, and can hold the answers back."""

    def __init__(self, target):
        self._target = target
        self._open = asyncio.Event()
        self._open.set()
        self._tasks = set()

    async def start(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = Address(*self._server.sockets[0].getsockname())

    async def stop(self):
        self._server.close()
        for task in list(self._tasks):
            await stop(task)

    def hold(self):
        self._open.clear()

    def release(self):
        self._open.set()

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        upstream = None
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._target)
            await asyncio.gather(
                self._copy(reader, upstream[1], None),
                self._copy(upstream[0], writer, self._open),
            )
        except (OSError, asyncio.CancelledError):
            pass  # either side, or the test, hung up
        finally:
            for open_writer in (writer, upstream and upstream[1]):
                if open_writer:
                    open_writer.close()
            self._tasks.discard(asyncio.current_task())

    @staticmethod
    async def _copy(reader, writer, gate):
        while data := await reader.read(65536):
            if gate is not None:
                await gate.wait()
            writer.write(data)
            await writer.drain()
        writer.close()

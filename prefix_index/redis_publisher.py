"""The node's side of the shared index: writes what the event log says into Redis."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline

from prefix_index.backoff import Backoff
from prefix_index.batch import Batch
from prefix_index.cancellation import raise_if_cancelled
from prefix_index.event_log import EventLog
from prefix_index.events import Kind, pack, runs
from prefix_index.redis_layout import (
    GENERATION,
    SEQUENCE,
    Entry,
    Fields,
    held_field,
    held_key,
    shard_of,
    stream_key,
)
from prefix_index.redis_shards import FAILURES, TIMEOUT, RedisShards

HEARTBEAT = 2.0  # seconds without a change until the node says that it is still there
TTL = 30.0  # seconds after its last word until a node's keys are gone
STREAM_LENGTH = 10_000  # entries a shard, approximately
CHUNK = 2_000  # fields of a snapshot in one command

logger = structlog.get_logger(__name__)


class RedisPublisher:
    """Keeps the node's HASH equal to its event log, and tells of each change in its shard's STREAM.

        publisher = RedisPublisher(url, "group", "node-0", epoch, log)
        task = asyncio.create_task(publisher.run())
        ...
        task.cancel()
        await publisher.aclose()

    Redis may be away, slow, restarted or empty: the engine only ever appends to the log, whose
    subscription is bounded. After any failure the whole state is written again, since nobody
    knows what arrived.
    """

    def __init__(
        self,
        url: str,
        group: str,
        node: str,
        epoch: int,
        log: EventLog,
        shards: int = 1,
        *,
        heartbeat: float = HEARTBEAT,
        ttl: float = TTL,
        timeout: float = TIMEOUT,
    ) -> None:
        """`group` names the fleet in Redis, `shards` is the same on all its nodes and routers.

        Times are in seconds.
        """
        shard = shard_of(node, shards)
        self._node, self._epoch = node, epoch
        self._stream = stream_key(group, shard)
        self._held = held_key(group, shard, node, epoch)
        self._servers = RedisShards(url, timeout)
        self._subscription = log.subscribe()
        self._heartbeat = heartbeat
        self._ttl = int(ttl * 1000)
        self._timeout = timeout
        self._generation = 0
        self._sequence = 0  # of the last batch written
        self._backoff = Backoff()

    async def run(self) -> None:
        """Publishes until it is cancelled."""
        while True:
            try:
                await self._publish()
            except FAILURES as error:
                delay = self._backoff.fail()
                if self._backoff.failures == 1:
                    logger.warning("redis_index_away", node=self._node, error=str(error))
                self._servers.forget()
                self._subscription.restart()
                await asyncio.sleep(delay)

    async def aclose(self) -> None:
        """Removes the node's keys, unless Redis is away, and lets go of log and connections.

        `run` must have ended.
        """
        self._subscription.close()
        with contextlib.suppress(*FAILURES):
            async with asyncio.timeout(self._timeout):
                await (await self._client()).unlink(self._held)
        await self._servers.aclose()

    async def _client(self) -> Redis:
        return await self._servers.client(self._held)

    async def _publish(self) -> None:
        while True:
            raise_if_cancelled()
            batch = await self._next()
            if batch.snapshot:
                await self._write_snapshot(batch)
            else:
                await self._write_delta(batch)
            if self._backoff.failures:
                logger.info("redis_index_back", node=self._node)
                self._backoff.reset()

    async def _next(self) -> Batch:
        """The next change, or, after a `heartbeat` without one, only how far the node is."""
        try:
            async with asyncio.timeout(self._heartbeat):
                return await self._subscription.next()
        except TimeoutError:
            return self._position(self._sequence)

    async def _write_snapshot(self, batch: Batch) -> None:
        """Builds the HASH aside, so that a reader sees the old one or the new one, and tells."""
        self._generation += 1
        redis, aside = await self._client(), self._held + b":new"
        state: Fields = {SEQUENCE: batch.sequence, GENERATION: self._generation}
        async with redis.pipeline(transaction=True) as pipe:
            pipe.unlink(aside)
            pipe.hset(aside, mapping=state)
            pipe.pexpire(aside, self._ttl)
            await pipe.execute()
        for fields in _chunks(batch):
            await redis.hset(aside, mapping=fields)
        async with redis.pipeline(transaction=True) as pipe:
            pipe.rename(aside, self._held)
            self._tell(pipe, self._position(batch.sequence))
            await pipe.execute()
        self._sequence = batch.sequence

    async def _write_delta(self, batch: Batch) -> None:
        change = _Change.of(batch)
        state: Fields = {SEQUENCE: batch.sequence}
        expected = [b"%d" % self._sequence, b"%d" % self._generation]
        redis = await self._client()
        async with redis.pipeline(transaction=True) as pipe:
            pipe.hmget(self._held, [SEQUENCE, GENERATION])
            if change.cleared:
                pipe.unlink(self._held)
                state[GENERATION] = self._generation
            pipe.hset(self._held, mapping=state | change.stored)
            if change.removed:
                pipe.hdel(self._held, *change.removed)
            self._tell(pipe, batch)
            found, *_ = await pipe.execute()
        self._sequence = batch.sequence
        if found != expected:
            # Redis was emptied, or went back to an older dump: the delta fell into nothing.
            logger.warning("redis_index_lost", node=self._node, found=found, expected=expected)
            self._subscription.restart()

    def _tell(self, pipe: Pipeline, batch: Batch) -> None:
        entry = Entry(self._node, self._epoch, self._generation, batch)
        pipe.pexpire(self._held, self._ttl)
        pipe.xadd(self._stream, entry.to_fields(), maxlen=STREAM_LENGTH, approximate=True)
        pipe.pexpire(self._stream, self._ttl)

    @staticmethod
    def _position(sequence: int) -> Batch:
        return Batch(sequence, sequence, False, pack([]))


class _Change(NamedTuple):
    """What a delta does to the HASH; `cleared` comes first."""

    cleared: bool
    stored: Fields
    removed: list[bytes]

    @classmethod
    def of(cls, batch: Batch) -> "_Change":
        cleared, last = False, dict[bytes, Kind]()
        for kind, tier, keys in runs(batch.packed):
            if tier is None:
                cleared, last = True, {}
            else:
                last.update((held_field(tier, key), kind) for key in keys)
        stored: Fields = {field: b"" for field in last if last[field] is Kind.STORED}
        return cls(cleared, stored, [field for field in last if last[field] is Kind.REMOVED])


def _chunks(batch: Batch) -> Iterator[Fields]:
    """The blocks of a snapshot as fields of the HASH."""
    for _, tier, keys in runs(batch.packed):
        if tier is not None:
            for start in range(0, len(keys), CHUNK):
                yield {held_field(tier, key): b"" for key in keys[start : start + CHUNK]}

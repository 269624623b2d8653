"""The mirror's feed from the shared index in Redis."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import structlog
from redis.asyncio import Redis
from redis.typing import KeyT, StreamIdT

from prefix_index.backoff import Backoff
from prefix_index.batch import Batch
from prefix_index.cancellation import raise_if_cancelled
from prefix_index.events import TIERS, Tier, pack_held
from prefix_index.mirror import Mirror
from prefix_index.redis_layout import (
    GENERATION,
    SEQUENCE,
    Entry,
    held_key,
    parse_held_field,
    shard_of,
    stream_key,
)
from prefix_index.redis_shards import FAILURES, TIMEOUT, RedisShards

SILENCE = 10.0  # seconds without a word, five heartbeats, until a node's entries count as old
READ_COUNT = 256  # entries of one XREAD, applied without a pause
BUFFER = 10_000  # entries of a node that wait for its reload

_Entries = list[tuple[bytes, dict[bytes, bytes]]]  # (id, fields), in order
_Positions = dict[KeyT, StreamIdT]  # stream → id of the last entry read

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Tracked:
    epoch: int
    heard: float  # when it last said something, by the feed's clock
    silent: bool = False
    generation: int = 0  # of the HASH that the mirror was loaded from; 0: not yet
    buffer: deque[Entry] | None = None  # what came in during a reload


class RedisFeed:
    """A Feed (see feed.py) that tails the shards' streams, and reloads a node's HASH when it has
    to.

        stream ──tail──▶ entry ──continues what is held?──yes──▶ mirror
                           │ no: gap, new generation
                           ▼
        HASH ──reload──▶ snapshot, then the entries that came in meanwhile ──▶ mirror

    A new node, a gap, a heartbeat that is ahead and a replaced HASH all lead to a reload. The
    scan of a HASH that changes meanwhile is no state of any moment; the entries since its start,
    all idempotent, make it one. If these were trimmed away, that is a gap again.

    While Redis is away all nodes are STALE and `healthy` is False; then it is tried again for ever.
    """

    def __init__(
        self,
        url: str,
        group: str,
        mirror: Mirror,
        shards: int = 1,
        *,
        silence: float = SILENCE,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`group` and `shards` as the nodes' publishers have them. Times in seconds."""
        self._group, self._shards = group, shards
        self._mirror = mirror
        self._servers = RedisShards(url, timeout)
        self._silence = silence
        self._block = int(timeout * 1000 / 2)  # ms that one XREAD waits: well inside the timeout
        self._clock = clock
        self._nodes: dict[str, _Tracked] = {}
        self._wanted: dict[str, None] = {}  # nodes to reload, in order
        self._reload_due = asyncio.Event()
        self._healthy = False
        self._backoff = Backoff()

    @property
    def healthy(self) -> bool:
        return self._healthy

    def feeds(self, node: str) -> bool:
        """Whether the node's events come in: Redis is there, and the node writes to it."""
        known = self._nodes.get(node)
        return self._healthy and known is not None and not known.silent

    def track(self, node: str, epoch: int) -> None:
        known = self._nodes.get(node)
        if known is not None and known.epoch == epoch:
            return
        self._mirror.set_epoch(node, epoch)
        self._nodes[node] = _Tracked(epoch, self._clock())
        self._want(node)

    def untrack(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._mirror.drop(node)

    async def run(self) -> None:
        """Feeds the mirror until it is cancelled."""
        try:
            while True:
                raise_if_cancelled()
                try:
                    await self._follow()
                except (*FAILURES, ValueError) as error:
                    self._lose(error)
                await asyncio.sleep(self._backoff.fail())
        finally:
            self._healthy = False
            await self._servers.aclose()

    async def _follow(self) -> None:
        """Tails and reloads until one of them fails."""
        streams = [stream_key(self._group, shard) for shard in range(self._shards)]
        tails: list[tuple[Redis, _Positions]] = []
        for redis, keys in await self._servers.servers(streams):
            tails.append((redis, {key: await _last_id(redis, key) for key in keys}))
        raise_if_cancelled()
        self._begin()
        # No TaskGroup: in Python 3.11 it swallows a cancellation that meets a failure.
        parts = [self._reload_wanted(), *(self._tail(*tail) for tail in tails)]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self) -> None:
        log.info("redis_index_connected", group=self._group)
        self._healthy = True
        self._backoff.reset()
        for node, known in self._nodes.items():
            known.heard, known.silent = self._clock(), False
            self._want(node)

    def _lose(self, error: Exception) -> None:
        if self._backoff.failures == 0:
            log.warning("redis_index_away", group=self._group, error=str(error))
        self._servers.forget()
        if self._healthy:  # else the nodes have gone over to another feed
            for node in self._nodes:
                self._mirror.mark_stale(node)
        self._healthy = False

    async def _tail(self, redis: Redis, positions: _Positions) -> None:
        while True:
            raise_if_cancelled()
            answer = await redis.xread(positions, count=READ_COUNT, block=self._block)
            for stream, entries in cast(list[tuple[bytes, _Entries]], answer):
                for _, fields in entries:
                    self._take(fields)
                positions[stream] = entries[-1][0]
            self._notice_silence()

    def _take(self, fields: dict[bytes, bytes]) -> None:
        try:
            entry = Entry.from_fields(fields)
        except ValueError as error:
            log.error("redis_index_malformed", group=self._group, error=str(error))
            return
        known = self._nodes.get(entry.node)
        if known is None or known.epoch != entry.epoch:
            return
        known.heard, known.silent = self._clock(), False
        if known.buffer is not None:
            known.buffer.append(entry)
        else:
            self._apply(known, entry)

    def _apply(self, known: _Tracked, entry: Entry) -> None:
        if entry.generation < known.generation:
            return
        if entry.generation > known.generation or not self._merge(entry.node, known, entry.batch):
            self._mirror.mark_stale(entry.node)
            self._want(entry.node)

    def _merge(self, node: str, known: _Tracked, batch: Batch) -> bool:
        try:
            return self._mirror.apply(node, known.epoch, batch)
        except ValueError as error:
            log.error("redis_index_malformed", node=node, error=str(error))
            return False

    def _notice_silence(self) -> None:
        """A publisher that is cut off from Redis looks like a node on which nothing happens."""
        now = self._clock()
        for node, known in self._nodes.items():
            if not known.silent and now - known.heard > self._silence:
                log.warning("redis_index_silent", node=node, seconds=round(now - known.heard, 1))
                known.silent = True
                self._mirror.mark_stale(node)

    def _want(self, node: str) -> None:
        self._wanted[node] = None
        self._reload_due.set()

    async def _reload_wanted(self) -> None:
        while True:
            raise_if_cancelled()
            while not self._wanted:
                self._reload_due.clear()
                await self._reload_due.wait()
            node = next(iter(self._wanted))
            del self._wanted[node]
            if (known := self._nodes.get(node)) is not None:
                await self._reload(node, known)

    async def _reload(self, node: str, known: _Tracked) -> None:
        # The tail keeps the node's entries from here on, all later than what is read below.
        known.buffer = deque(maxlen=BUFFER)
        try:
            snapshot = await self._read_held(node, known)
        finally:
            meanwhile, known.buffer = known.buffer, None
        if self._nodes.get(node) is not known:
            return
        if snapshot is not None:
            self._merge(node, known, snapshot)
        for entry in meanwhile:
            self._apply(known, entry)

    async def _read_held(self, node: str, known: _Tracked) -> Batch | None:
        """The node's HASH as a snapshot, and its generation into `known`.

        None if it is not there, or a torso: the publisher's next snapshot says so in the stream.
        """
        key = held_key(self._group, shard_of(node, self._shards), node, known.epoch)
        redis = await self._servers.client(key)
        sequence, generation = await redis.hmget(key, [SEQUENCE, GENERATION])
        if sequence is None or generation is None:
            return None
        held: dict[Tier, list[bytes]] = {tier: [] for tier in TIERS}
        async for field, _ in redis.hscan_iter(key, count=1000):
            if (block := parse_held_field(field)) is not None:
                held[block[0]].append(block[1])
        known.generation = int(generation)
        return Batch(0, int(sequence), True, pack_held(held))


async def _last_id(redis: Redis, stream: bytes) -> bytes:
    last = cast(_Entries, await redis.xrevrange(stream, count=1))
    return last[0][0] if last else b"0-0"

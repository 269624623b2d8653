"""Clients for the servers that hold the shards of an index."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from prefix_index.redis_url import Address, RedisUrl

TIMEOUT = 2.0  # seconds for one answer of Redis
LAST_SLOT = 16383  # of a Redis Cluster

FAILURES = (RedisError, OSError, RuntimeError)
"""What a call can raise whose server is away, or has just gone: uvloop answers a write to a
connection that it has closed with a RuntimeError, which redis-py hands on.
"""


class Server(NamedTuple):
    """A client, and the keys out of those that were asked for that one command of it may name."""

    client: Redis
    keys: list[bytes]


class _Range(NamedTuple):
    first: int
    last: int
    master: Address


class RedisShards:
    """One Redis has all shards; of a Redis Cluster, each master has those whose slot it has.

    Which of the two it is, and where the slots lie, is asked of the first seed that answers, with
    CLUSTER SLOTS. There is no following of redirections: after any failure, a slot that has moved
    included, call `forget`; the next look asks again, servers learned before among the seeds.

    Owns all clients until `aclose`. They give up after the timeout, of connecting (name look-up
    included) and of waiting. They never retry by themselves: redis-py's own retries can hold one
    call for minutes, and what has to be done again after a failure is more than the failed call.
    """

    def __init__(self, url: str, timeout: float = TIMEOUT) -> None:
        """`timeout` in seconds. Raises ValueError for a URL that RedisUrl refuses."""
        self._url = RedisUrl.parse(url)
        self._timeout = timeout
        self._clients: dict[Address, Redis] = {}
        self._ranges: list[_Range] | None = None  # None: to be asked
        self._clustered = False

    async def client(self, key: bytes) -> Redis:
        """Of the server that has `key`. Raises one of FAILURES if none says that it has."""
        if self._ranges is None:
            self._ranges = await self._ask()
        slot = key_slot(key)
        for first, last, master in self._ranges:
            if first <= slot <= last:
                return self._client(master)
        raise RedisError(f"no server of the Redis Cluster has slot {slot}")

    async def servers(self, keys: Iterable[bytes]) -> list[Server]:
        """For commands on several keys. A Redis Cluster allows these for keys of one slot only."""
        servers = [Server(await self.client(key), [key]) for key in keys]
        if self._clustered:
            return servers
        return [Server(servers[0].client, [key for _, (key,) in servers])]

    def forget(self) -> None:
        """What is known of the servers may be old."""
        self._ranges = None

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients = {}

    async def _ask(self) -> list[_Range]:
        failure: Exception = RedisError("no seed")
        for seed in dict.fromkeys((*self._url.seeds, *self._clients)):
            try:
                return await self._ask_server(seed)
            except FAILURES as error:
                failure = error
        raise failure

    async def _ask_server(self, seed: Address) -> list[_Range]:
        self._clustered = False
        try:
            answer = await _slots(self._client(seed))
        except NoPermissionError:
            pass  # one Redis, or a cluster whose first write says what is missing
        except ResponseError as error:
            if "cluster support disabled" not in str(error):
                raise
        else:
            self._clustered = True
            return [_range(each, seed) for each in answer]
        return [_Range(0, LAST_SLOT, seed)]

    def _client(self, address: Address) -> Redis:
        if address not in self._clients:
            self._clients[address] = Redis.from_url(
                self._url.at(address),
                socket_connect_timeout=self._timeout,
                socket_timeout=self._timeout,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        return self._clients[address]


async def _slots(client: Redis) -> list[Any]:
    return await client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call, no-any-return]


def _range(entry: Sequence[Any], seed: Address) -> _Range:
    """From an entry of CLUSTER SLOTS. A server that does not know its own name leaves it empty."""
    first, last, (host, port, *_), *_replicas = entry
    return _Range(first, last, Address(host.decode() if host else seed.host, port))

"""The same limits over all routers of a fleet, in Redis.

    {group:tenant:HEX}:rates    HASH   level of each bucket and when that was, by Redis' clock
    {group:tenant:HEX}:running  ZSET   request of a router → when it counts no more

HEX is the tenant's name. Both lie in one slot of a Redis Cluster, and one script changes them. A
request that a dead router never gave back is forgotten after LEASE.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import structlog

from prefix_index.redis_shards import RedisShards
from router.limit_scripts import GIVE, RENEW, TAKE
from router.local_limits import CONCURRENCY_RETRY, over_limit
from router.redis_script import RedisScript
from router.tenants import EVERYBODY, Tenant

log = structlog.get_logger("router")

TIMEOUT = 0.25  # seconds for an answer, then this router goes by its own account
AWAY = 1.0  # seconds until Redis is asked again after it did not answer
LEASE = 30.0  # seconds that a request counts for after its router was last heard of
CONNECTIONS = 16

_LIMITS = ("concurrency", "requests_per_second", "tokens_per_second")


@dataclass(frozen=True, slots=True)
class Held:
    """A request that counts in Redis. Whoever has it gives it back."""

    tenant: Tenant
    member: str


class SharedLimits:
    """Asks Redis for what the router's own account allows. While Redis is away that is all there
    is, each router then holds the limits alone, and `shared` is False.
    """

    def __init__(
        self,
        servers: RedisShards,
        group: str,
        router_id: str,
        *,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = servers
        self._group = group
        self._router_id = router_id
        self._lease = lease
        self._clock = clock
        self._connections = asyncio.Semaphore(CONNECTIONS)
        self._numbers = count()
        self._held: set[Held] = set()
        self._giving: set[asyncio.Task[None]] = set()
        self._away_until = 0.0
        self.shared = True
        self.failures = 0

    async def take(self, tenant: Tenant, tokens: int) -> Held | None:
        """Counts a request of so many tokens; None when Redis is away or there is no limit.

        Raises RESOURCE_EXHAUSTED when that is more than all routers together may let in now.
        """
        if not tenant.limits.any:
            return None
        held = Held(tenant, f"{self._router_id}/{next(self._numbers)}")
        self._held.add(held)
        try:
            answer = await self._call(TAKE, tenant, self._taking(held, tokens))
        except BaseException:
            self.give(held, -tokens)
            raise
        if answer is None or answer[0] > 0:
            self._held.discard(held)
        if answer is not None and answer[0] > 0:
            place, delay = answer
            raise over_limit(tenant, _LIMITS[place - 1], delay or CONCURRENCY_RETRY)
        return held if answer is not None else None

    def give(self, held: Held, correction: int) -> None:
        """The request has ended, and used so many tokens more than were taken. Does not wait."""
        self._held.discard(held)
        limits = held.tenant.limits
        rate, burst = _rate_and_burst(limits.tokens_per_second, limits.burst_seconds)
        arguments = (held.member, rate, burst, correction)
        task = asyncio.create_task(self._give_back(held.tenant, arguments))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)

    async def run(self) -> None:
        """Keeps what runs counted, and looks for a Redis that is away."""
        while True:
            await asyncio.sleep(self._lease / 3 if self.shared else AWAY)
            await self.renew()

    async def renew(self) -> None:
        for tenant in {EVERYBODY, *(held.tenant for held in self._held)}:
            members = [held.member for held in self._held if held.tenant == tenant]
            await self._call(RENEW, tenant, (self._lease, *members))

    async def settled(self) -> None:
        """Waits until what has ended is given back."""
        await asyncio.gather(*self._giving)

    async def _give_back(self, tenant: Tenant, arguments: tuple[object, ...]) -> None:
        await self._call(GIVE, tenant, arguments)

    async def _call(
        self, script: RedisScript, tenant: Tenant, arguments: tuple[object, ...]
    ) -> tuple[int, float] | None:
        """What a script answers; None when Redis does not, and for a while after that."""
        if self._clock() < self._away_until:
            return None
        tag = f"{{{self._group}:tenant:{tenant.name.encode().hex()}}}"
        keys = (f"{tag}:rates", f"{tag}:running")
        try:
            async with self._connections, asyncio.timeout(TIMEOUT):
                client = await self._servers.client(keys[0].encode())
                answer = await script.run(client, keys, arguments)
        except Exception as error:  # noqa: BLE001  # whatever it is, limits must not stop requests
            self._lost(error)
            return None
        self._found()
        return (answer[0], float(answer[1])) if answer else (0, 0.0)

    def _taking(self, held: Held, tokens: int) -> tuple[object, ...]:
        limits = held.tenant.limits
        burst = limits.burst_seconds
        requests = _rate_and_burst(limits.requests_per_second, burst)
        rates = (*requests, 1, *_rate_and_burst(limits.tokens_per_second, burst), tokens)
        return (held.member, self._lease, limits.concurrency or 0, *rates)

    def _lost(self, error: Exception) -> None:
        self._servers.forget()
        self.failures += 1
        self._away_until = self._clock() + AWAY
        if self.shared:
            self.shared = False
            log.warning("shared_limits", state="local", problem=repr(error))

    def _found(self) -> None:
        if not self.shared:
            self.shared = True
            log.info("shared_limits", state="shared")


def _rate_and_burst(rate: float | None, burst_seconds: float) -> tuple[float, float]:
    return (0.0, 0.0) if rate is None else (rate, max(1.0, rate * burst_seconds))

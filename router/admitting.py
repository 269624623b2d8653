"""Makes the parts of admission, and runs those that have work of their own."""

import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from router.admission import Admission
from router.admission_metrics import AdmissionMetrics
from router.charge import TokenAccount
from router.config import RouterConfig
from router.fair_queue import FairQueue
from router.ledger import Ledger
from router.local_limits import LocalLimits
from router.registry import Registry
from router.start_gate import StartGate
from router.tenant_directory import TenantDirectory
from router.tenant_source import TenantsInRedis
from router.watermark import Marks, Watermark

if TYPE_CHECKING:
    from prefix_index.redis_shards import RedisShards
    from router.shared_limits import SharedLimits

REDIS = "redis"
"""Instead of a file: the tenants are in Redis."""


class Admitting:
    """What a router has of admission. With tenants and Redis, limits hold over all routers."""

    def __init__(
        self,
        config: RouterConfig,
        registry: Registry,
        ledger: Ledger,
        metrics: AdmissionMetrics,
        router_id: str,
    ) -> None:
        """Raises ValueError for tenants that cannot be used."""
        self._servers = _servers(config)
        self._tenants = _tenants(config, self._servers)
        self.watermark = Watermark(ledger, Marks(config.low_watermark, config.high_watermark))
        self._shared = _shared(config, self._servers, router_id)
        self.queue = FairQueue(config.max_queue)
        self._gate = StartGate(registry, self.watermark, self.queue, metrics, time.monotonic)
        limits = LocalLimits(time.monotonic)
        self.admission = Admission(
            config.max_in_flight,
            config.queue_timeout,
            self._tenants,
            limits,
            TokenAccount(limits, self._shared),
            self._gate,
            time.monotonic,
        )
        ledger.on_room(self._gate.wake)
        registry.on_change(self._gate.wake)
        metrics.watch(self.queue, self.watermark, registry, self._tenants, self._shared)

    def work(self) -> dict[str, Coroutine[Any, Any, None]]:
        """What is to run as long as the router does, by name."""
        shared = {"limits": self._shared.run()} if self._shared is not None else {}
        return {"queue": self._gate.run(), "tenants": self._tenants.run(), **shared}

    async def close(self) -> None:
        """After the last request."""
        if self._shared is not None:
            await self._shared.settled()
        if self._servers is not None:
            await self._servers.aclose()


def _servers(config: RouterConfig) -> "RedisShards | None":
    if config.redis_url is None or config.tenants is None:
        return None
    from prefix_index.redis_shards import RedisShards  # costs 100 ms, and most start without

    return RedisShards(config.redis_url)


def _tenants(config: RouterConfig, servers: "RedisShards | None") -> TenantDirectory:
    if config.tenants is None:
        return TenantDirectory(None)
    if config.tenants != REDIS:
        return TenantDirectory.of_file(Path(config.tenants))
    assert servers is not None  # RouterConfig sees to it
    return TenantDirectory(TenantsInRedis(servers, config.redis_group))


def _shared(
    config: RouterConfig, servers: "RedisShards | None", router_id: str
) -> "SharedLimits | None":
    if servers is None:
        return None
    from router.shared_limits import SharedLimits

    return SharedLimits(servers, config.redis_group, router_id)

"""What a request passes before it reaches a node, the cheap checks first.

arrival ─▶ places in the router ─▶ tenant's requests, a second and at once
prompt  ─▶ tenant's tokens a second ─▶ queue until a node has room ─▶ dispatch
"""

from collections.abc import Callable, Iterable

from kvmesh.errors import invalid
from router.charge import Charge, TokenAccount
from router.fair_queue import PriorityClass, Waiter
from router.local_limits import LocalLimits
from router.metadata import Pair
from router.refused_error import refused
from router.request_size import RequestSize
from router.slot import Slot
from router.start_gate import StartGate
from router.tenant_directory import TenantDirectory
from router.tenants import EVERYBODY, Tenant

FULL_RETRY = 1.0
"""Seconds after which a client may come back when the router or all nodes are full."""

LEAST_TIME = 0.1
"""Seconds before its deadline at which a request has to start at the latest."""

SHARE = 8
"""A tenant has at most so many times the places that are free: however many come, another finds
some. Without tenants there is nobody to keep them for.
"""


class Admission:
    """Owns what a request holds of the router, and of its tenant's limits, from arrival to end.

    `queue_timeout`, and the `clock` of all times here, are in seconds.
    """

    def __init__(
        self,
        max_in_flight: int,
        queue_timeout: float,
        tenants: TenantDirectory,
        limits: LocalLimits,
        tokens: TokenAccount,
        gate: StartGate,
        clock: Callable[[], float],
    ) -> None:
        self._max_in_flight = max_in_flight
        self._queue_timeout = queue_timeout
        self._tenants = tenants
        self._limits = limits
        self._tokens = tokens
        self._gate = gate
        self._clock = clock
        self._places: dict[str, int] = {}  # by tenant

    @property
    def in_flight(self) -> int:
        return sum(self._places.values())

    def tenant_named(self, name: str) -> Tenant:
        """Everybody for an empty name. Raises INVALID_ARGUMENT for one that no tenant has."""
        return self._tenants.named(name) if name else EVERYBODY

    def tenant_of(self, client: Iterable[Pair]) -> Tenant:
        """See TenantDirectory.tenant_of."""
        return self._tenants.tenant_of(client)

    def slot(self, tenant: Tenant = EVERYBODY, count: int = 1) -> Slot:
        """Takes `count` places for requests of `tenant`; the caller closes it.

        Raises RESOURCE_EXHAUSTED when the router, or the tenant, may not have so many now,
        INVALID_ARGUMENT when there are never so many.
        """
        self._check_places(tenant, count)
        return Slot(tenant, count, self._places, self._limits)

    async def start(
        self, tenant: Tenant, priority: int, size: RequestSize, deadline: float
    ) -> Charge:
        """Returns when the request may be dispatched, which has to be the next thing that is done.
        The caller closes the charge when the request has ended.

        Raises RESOURCE_EXHAUSTED for more tokens than the tenant may have now, for a full queue,
        and for a request that cannot start before `deadline`; UNAVAILABLE without a node.
        """
        charge = await self._tokens.take(tenant, size)
        now = self._clock()
        waiter = Waiter(
            tenant.name,
            tenant.limits.weight,
            PriorityClass.of(priority),
            charge.expected,
            size,
            arrived=now,
            start_by=min(now + self._queue_timeout, deadline - LEAST_TIME),
        )
        try:
            await self._gate.start(waiter)
        except BaseException:
            charge.close()
            raise
        charge.waited = self._clock() - now
        return charge

    def _check_places(self, tenant: Tenant, count: int) -> None:
        most, free = self._max_in_flight, self._max_in_flight - self.in_flight
        if count > most:
            raise invalid("prompt", f"must be at most {most} prompts, the router's limit in flight")
        if count > free:
            message = f"the router has its limit of {most} requests in flight"
            raise refused("in_flight", message, FULL_RETRY)
        own = self._places.get(tenant.name, 0) + count
        if tenant is not EVERYBODY and own > max(1, SHARE * (free - count)):
            message = f"the router has room for {free} more, not for tenant {tenant.name} now"
            raise refused("in_flight", message, FULL_RETRY)


def check_tenant_priority(tenant: Tenant, priority: int) -> None:
    """Raises INVALID_ARGUMENT for more than the tenant may have."""
    most = tenant.limits.max_priority
    if priority > most:
        raise invalid("priority", f"must be at most {most} for tenant {tenant.name}, is {priority}")

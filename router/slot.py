"""A request's places: one in the router, one in its tenant's limits."""

from router.local_limits import LocalLimits
from router.tenants import Tenant


class Slot:
    """`count` places of `tenant` until it is closed; a block closes it. Idempotent.

    A class: the block of a generator takes three times as long.
    """

    __slots__ = ("_count", "_limits", "_places", "_tenant")

    def __init__(
        self, tenant: Tenant, count: int, places: dict[str, int], limits: LocalLimits
    ) -> None:
        """Counts in `places`, by the tenant's name, and in `limits`, which raise
        RESOURCE_EXHAUSTED for more than the tenant may have now.
        """
        limits.begin(tenant, count)
        self._tenant, self._count = tenant, count
        self._places, self._limits = places, limits
        places[tenant.name] = places.get(tenant.name, 0) + count

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        count, self._count = self._count, 0
        if not count:
            return
        self._limits.end(self._tenant, count)
        name, places = self._tenant.name, self._places
        left = places[name] - count
        if left:
            places[name] = left
        else:
            del places[name]

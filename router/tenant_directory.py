"""Finds out who a client is."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from kvmesh.errors import Code, RequestError, invalid, unavailable
from router.metadata import Pair, presented_key
from router.tenant_source import TenantFile, TenantSource
from router.tenants import EVERYBODY, Tenant, Tenants

log = structlog.get_logger("router")

RELOAD = 1.0  # seconds between two looks at the source


class TenantDirectory:
    """Holds the tenants that the source had last. A source that is away, or wrong, changes nothing.

    Without a source everybody is the same tenant, without limits.
    """

    def __init__(self, source: TenantSource | None, period: float = RELOAD) -> None:
        self._source = source
        self._period = period
        self._tenants: Tenants | None = None
        self.failures = 0  # looks at the source that failed

    @classmethod
    def of_file(cls, path: Path) -> "TenantDirectory":
        """Read at once. Raises ValueError for a file that cannot be used."""
        source = TenantFile(path)
        directory = cls(source)
        try:
            directory._tenants = source.read()
        except (OSError, ValueError) as error:
            raise ValueError(f"tenants: {error}") from error
        return directory

    def __len__(self) -> int:
        return len(list(self._tenants or ()))

    def tenant_of(self, client: Iterable[Pair]) -> Tenant:
        """Whose key is in the metadata, or in the headers. Raises UNAUTHENTICATED for another one
        or none, UNAVAILABLE as long as no tenants are known.
        """
        if self._source is None:
            return EVERYBODY
        if self._tenants is None:
            raise unavailable("the router does not know its tenants yet, try again soon")
        key = presented_key(client)
        tenant = None if key is None else self._tenants.of(key)
        if tenant is None:
            problem = "is not known" if key else "is missing"
            raise RequestError(
                Code.UNAUTHENTICATED,
                f"api key: {problem}, send `Authorization: Bearer KEY` with the key of a tenant",
            )
        return tenant

    def named(self, name: str) -> Tenant:
        """Raises INVALID_ARGUMENT for a name that no tenant has."""
        for tenant in self._tenants or ():
            if tenant.name == name:
                return tenant
        raise invalid("tenant", f"no tenant is called {name[:200]!r}")

    async def run(self) -> None:
        """Follows the source for as long as the router lives."""
        while self._source is not None:
            await self.refresh(self._source)
            await asyncio.sleep(self._period)

    async def refresh(self, source: TenantSource) -> None:
        try:
            changed = await source.changed()
        except Exception as error:  # noqa: BLE001  # the source of tomorrow may be right again
            self.failures += 1
            log.warning("tenants", problem=str(error), kept=len(self))
            return
        if changed is not None:
            self._tenants = changed
            log.info("tenants", count=len(self))

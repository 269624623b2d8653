"""Where tenants are written down: a file, or Redis. Both are read again while the router runs."""

import asyncio
import json
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from router.tenant_records import read_tenants
from router.tenants import Tenants

if TYPE_CHECKING:
    from prefix_index.redis_shards import RedisShards


class TenantSource(Protocol):
    """Two exist: TenantFile and TenantsInRedis."""

    async def changed(self) -> Tenants | None:
        """All tenants if they differ from those of the last call, else None.

        Raises ValueError, which names what is wrong, for tenants that cannot be used, and OSError
        or what redis_shards.FAILURES names when they cannot be had. Neither counts as a call.
        """
        ...


class TenantFile:
    """A TOML file, one table a tenant. Replace it as a whole: write another, then rename."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: bytes | None = None

    async def changed(self) -> Tenants | None:
        return await asyncio.to_thread(self.read)

    def read(self) -> Tenants | None:
        """As `changed`."""
        content = self._path.read_bytes()  # some kilobytes: a time stamp can miss a change
        if content == self._seen:
            return None
        try:
            tenants = read_tenants(tomllib.loads(content.decode()))
        except ValueError as error:
            raise ValueError(f"{self._path}: {error}") from error
        self._seen = content
        return tenants


class TenantsInRedis:
    """A HASH, tenant → JSON of its record, in the group of the fleet."""

    def __init__(self, servers: "RedisShards", group: str) -> None:
        self._servers = servers
        self._key = tenants_key(group)
        self._seen: dict[bytes, bytes] | None = None

    async def changed(self) -> Tenants | None:
        try:
            client = cast(Any, await self._servers.client(self._key.encode()))
            content: dict[bytes, bytes] = await client.hgetall(self._key)
        except Exception:
            self._servers.forget()
            raise
        if content == self._seen:
            return None
        try:
            records = {name.decode(): json.loads(record) for name, record in content.items()}
            tenants = read_tenants(records)
        except ValueError as error:
            raise ValueError(f"{self._key}: {error}") from error
        self._seen = content
        return tenants


def tenants_key(group: str) -> str:
    return f"{{{group}:tenants}}:keys"

"""Who may send requests, and how many."""

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256

DIGEST_BYTES = sha256().digest_size
_FOUND_BY = DIGEST_BYTES // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits:
    """None is no limit of its own."""

    requests_per_second: float | None = None
    tokens_per_second: float | None = None  # of prompts and outputs
    burst_seconds: float = 10.0  # of either rate that can be saved up
    concurrency: int | None = None  # requests from arrival to end
    weight: float = 1.0  # of its share, when tenants compete
    max_priority: int = 100  # that its requests may have

    @property
    def any(self) -> bool:
        """Whether there is something that routers have to agree on."""
        return (self.requests_per_second, self.tokens_per_second, self.concurrency) != (None,) * 3


@dataclass(frozen=True, slots=True)
class Tenant:
    """`shares_cache`: what it has cached others may find, if they share theirs too."""

    name: str
    limits: TenantLimits = TenantLimits()
    shares_cache: bool = False


EVERYBODY = Tenant("", shares_cache=True)
"""Who sends requests while no tenants are configured."""


class Tenants:
    """The tenants of one moment, by the SHA-256 of their keys.

    A key is long and random, so a plain hash hides it. The comparison takes the same time however
    much of a hash is right; finding the one to compare with reads a quarter of it.
    """

    def __init__(self, keys: Mapping[bytes, Tenant]) -> None:
        self._keys = {digest[:_FOUND_BY]: (digest, tenant) for digest, tenant in keys.items()}

    def __iter__(self) -> Iterator[Tenant]:
        return iter({tenant.name: tenant for _, tenant in self._keys.values()}.values())

    def of(self, key: str) -> Tenant | None:
        """Whose key it is."""
        presented = sha256(key.encode("utf-8", "replace")).digest()
        digest, tenant = self._keys.get(presented[:_FOUND_BY], _NOBODYS)
        return tenant if hmac.compare_digest(presented, digest) else None


_NOBODYS: tuple[bytes, Tenant | None] = (bytes(DIGEST_BYTES), None)

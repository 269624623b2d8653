"""What keeps the caches of tenants apart."""

from hashlib import blake2b

from kvmesh.fleet_key import FleetKey
from router.tenants import Tenant

SALT_BYTES = 16


class TenantSalts:
    """A tenant's salt is part of its block keys: the same in every router, and no two tenants' are.

    With the fleet's key it is a MAC of the tenant's name: who knows the name and a prompt cannot
    make the keys of its blocks. Without one it is a plain hash.
    """

    def __init__(self, fleet_key: FleetKey | None) -> None:
        self._key = fleet_key.derive(b"kvmesh-salt") if fleet_key is not None else b""

    def of(self, tenant: Tenant) -> bytes:
        """Empty for tenants that share their cache."""
        if tenant.shares_cache:
            return b""
        name = tenant.name.encode()
        return blake2b(
            name, key=self._key, digest_size=SALT_BYTES, person=b"kvmesh-tenant"
        ).digest()

"""Tenants as an operator writes them: in a TOML file, or as JSON in Redis.

    [acme]
    keys = ["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
    requests_per_second = 10
    tokens_per_second = 20000
    concurrency = 32

Everything but `keys` may be left out, see TenantLimits. `shares_cache = true` gives up the wall
between this tenant's cache and that of others who do so too.
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from router.tenants import DIGEST_BYTES, Tenant, TenantLimits, Tenants

_HASHED = "sha256:"
_ABOVE_ZERO = ("requests_per_second", "tokens_per_second", "burst_seconds", "weight")
_WHOLE = {"concurrency": range(1, 1 << 31), "max_priority": range(-100, 101)}
_OTHERS = ("keys", "shares_cache")
_LONGEST_NAME = 128


def read_tenants(records: Mapping[str, Any]) -> Tenants:
    """Raises ValueError that names tenant and field. Never shows a key."""
    keys: dict[bytes, Tenant] = {}
    for name, record in records.items():
        if not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise ValueError(f"{name!r:.200}: must be a name of 1 to {_LONGEST_NAME} characters")
        if not isinstance(record, Mapping):
            raise ValueError(f"{name}: must be a table with `keys`")
        shares_cache = record.get("shares_cache", False)
        if not isinstance(shares_cache, bool):
            raise ValueError(f"{name}.shares_cache: must be true or false")
        tenant = Tenant(name, _limits(name, record), shares_cache)
        for digest in _digests(name, record.get("keys")):
            if digest in keys:
                raise ValueError(f"{name}.keys: one is also a key of {keys[digest].name}")
            keys[digest] = tenant
    return Tenants(keys)


def _limits(name: str, record: Mapping[str, Any]) -> TenantLimits:
    given = {field: value for field, value in record.items() if field not in _OTHERS}
    for field, value in given.items():
        if field in _ABOVE_ZERO:
            if not _is_number(value) or not isfinite(value) or value <= 0:
                raise ValueError(f"{name}.{field}: must be a number above 0, is {value!r}")
        elif field in _WHOLE:
            allowed = _WHOLE[field]
            if not isinstance(value, int) or isinstance(value, bool) or value not in allowed:
                bounds = f"[{allowed[0]}, {allowed[-1]}]"
                raise ValueError(f"{name}.{field}: must be a whole number in {bounds}")
        else:
            known = ", ".join((*_OTHERS, *_ABOVE_ZERO, *_WHOLE))
            raise ValueError(f"{name}.{field}: is not known, use {known}")
    return TenantLimits(**given)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _digests(name: str, keys: object) -> list[bytes]:
    if not isinstance(keys, list) or not keys:
        raise ValueError(f"{name}.keys: must be a list of hashed keys, has none")
    return [_digest(f"{name}.keys[{place}]", key) for place, key in enumerate(keys)]


def _digest(field: str, key: object) -> bytes:
    digest = b""
    if isinstance(key, str) and key.startswith(_HASHED):
        try:
            digest = bytes.fromhex(key.removeprefix(_HASHED))
        except ValueError:
            digest = b""
    if len(digest) != DIGEST_BYTES:
        # Not the value itself: it may be a key after all.
        problem = f"must be {_HASHED} and the 64 hex digits of the key's SHA-256"
        raise ValueError(f"{field}: {problem}; `kvmesh key` makes both")
    return digest

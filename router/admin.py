"""Who may change the fleet."""

import hmac
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from kvmesh.errors import Code, RequestError
from kvmesh.tls import certified_names
from router.metadata import presented_key

_HASHED = "sha256:"
_LOOPBACK = (
    *("ipv4:127.", "ipv6:%5B::1%5D:", "ipv6:[::1]:", "unix:"),
    *("ipv6:%5B::ffff:127.", "ipv6:[::ffff:127."),
)


class Visitor(NamedTuple):
    """What is known of who asks. `local`: it is on the router's own host."""

    key: str | None
    names: frozenset[str]  # in a certificate that it has proved to own
    local: bool


class AdminRole:
    """Belongs to who presents an admin key, and to clients whose certificate has an admin's name.

    While neither is configured, it belongs to clients on the router's own host.
    """

    def __init__(self, key_file: Path | None, names: Iterable[str]) -> None:
        """Raises ValueError for a file without keys."""
        self._digests = _read(key_file) if key_file is not None else []
        self._names = frozenset(names)

    def require(self, method: str, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Raises PERMISSION_DENIED for any other client."""
        key = presented_key(context.invocation_metadata() or ())
        local = context.peer().startswith(_LOOPBACK)
        self.admit(method, Visitor(key, certified_names(context), local))

    def admit(self, method: str, visitor: Visitor) -> None:
        """Raises PERMISSION_DENIED for anybody else."""
        if self._digests or self._names:
            allowed = self.has_key(visitor.key) or bool(self._names & visitor.names)
            need = "an admin key, or the certificate of an admin"
        else:
            allowed = visitor.local
            need = "to be called on the router's host, as long as no admin is configured"
        if not allowed:
            raise RequestError(Code.PERMISSION_DENIED, f"{method} needs {need}")

    def has_key(self, key: str | None) -> bool:
        """Compares with all keys, in a time that depends on none of them."""
        presented = sha256((key or "").encode("utf-8", "replace")).digest()
        matches = [hmac.compare_digest(presented, digest) for digest in self._digests]
        return key is not None and any(matches)


def _read(path: Path) -> list[bytes]:
    """Digests of the keys in a file: one a line, itself or as sha256:HEX; # begins a comment."""
    field = "admin_key_file"
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{field}: cannot read {path}: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ValueError(f"{field}: {path} has no key, write one a line")
    return [_digest(place, key, path) for place, key in enumerate(keys, 1)]


def _digest(place: int, key: str, path: Path) -> bytes:
    if not key.startswith(_HASHED):
        return sha256(key.encode()).digest()
    try:
        digest = bytes.fromhex(key.removeprefix(_HASHED))
    except ValueError:
        digest = b""
    if len(digest) != sha256().digest_size:
        # Not the line itself: it may be a key after all.
        raise ValueError(
            f"admin_key_file: key {place} of {path} must be {_HASHED} and 64 hex digits"
        )
    return digest

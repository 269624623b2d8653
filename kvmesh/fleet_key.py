"""The secret that routers and nodes of one fleet share."""

from hashlib import blake2b
from pathlib import Path

LEAST_CHARACTERS = 32
KEY_BYTES = 32


class FleetKey:
    """Each use has a key of its own, made from the secret: `derive` gives the same on every host.

    The secret is the content of a file, spaces at its ends apart: `openssl rand -hex 32` makes one.
    """

    def __init__(self, secret: bytes) -> None:
        self._root = blake2b(secret, person=b"kvmesh-fleet").digest()

    @classmethod
    def read(cls, path: Path) -> "FleetKey":
        """Raises ValueError that names the setting."""
        try:
            secret = path.read_bytes().strip()
        except OSError as error:
            raise ValueError(f"fleet_key_file: cannot read {path}: {error.strerror}") from error
        if len(secret) < LEAST_CHARACTERS:
            raise ValueError(
                f"fleet_key_file: {path} must hold at least {LEAST_CHARACTERS} characters, "
                f"has {len(secret)}; `openssl rand -hex 32` makes them"
            )
        return cls(secret)

    def derive(self, use: bytes) -> bytes:
        """The key for `use`, at most 16 bytes, `KEY_BYTES` long."""
        return blake2b(key=self._root, digest_size=KEY_BYTES, person=use).digest()

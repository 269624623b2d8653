"""Leases: a router's word that a client may run one request on one node, which the node can check
without asking.

    lease = version ‖ expiry ‖ salt of the tenant ‖ MAC(version ‖ expiry ‖ salt ‖ node ‖ request)

The request is a NodeGenerateRequest without its salt, in the deterministic form that both sides
make of it. It names reservation, epoch, prompt and limits: the MAC, blake2b under a key of the
fleet, covers them all. The salt is readable. It is the client's own tenant's, and of no use without
the key.

A lease is good until its expiry; who takes it sees to it that it is used once.
"""

import hmac
import struct
from dataclasses import dataclass
from hashlib import blake2b

from kvmesh.fleet_key import FleetKey
from kvmesh.v1 import cache_node_pb2 as pb

METADATA = "kvmesh-lease-bin"

_VERSION = 1
_HEAD = struct.Struct("<BQ")  # version, expiry in milliseconds since 1970
_MAC_BYTES = 32


class WrongLeaseError(Exception):
    """Not a lease of this fleet for this request on this node."""


class ExpiredLeaseError(Exception):
    """It was one."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a node learns from a lease that is right."""

    salt: bytes
    expires: float  # seconds since 1970
    mac: bytes  # different for different leases


class LeaseKey:
    """Signs leases, and checks them."""

    def __init__(self, fleet_key: FleetKey) -> None:
        self._keyed = blake2b(key=fleet_key.derive(b"kvmesh-lease"), digest_size=_MAC_BYTES)

    def sign(
        self, request: pb.NodeGenerateRequest, node: str, salt: bytes, expires: float
    ) -> bytes:
        """A lease for `request`, which must not hold the salt, on the node called `node`."""
        body = _HEAD.pack(_VERSION, int(expires * 1000)) + salt
        return body + self._mac(body, node, request)

    def check(self, lease: bytes, request: pb.NodeGenerateRequest, node: str, now: float) -> Lease:
        """Raises WrongLeaseError, or ExpiredLeaseError; `now` is in seconds since 1970."""
        body, mac = lease[:-_MAC_BYTES], lease[-_MAC_BYTES:]
        right = hmac.compare_digest(mac, self._mac(body, node, request))
        if len(body) < _HEAD.size or body[0] != _VERSION or request.salt or not right:
            raise WrongLeaseError
        _, milliseconds = _HEAD.unpack_from(body)
        if now * 1000 > milliseconds:
            raise ExpiredLeaseError
        return Lease(body[_HEAD.size :], milliseconds / 1000, mac)

    def _mac(self, body: bytes, node: str, request: pb.NodeGenerateRequest) -> bytes:
        mac = self._keyed.copy()
        for part in (body, node.encode(), request.SerializeToString(deterministic=True)):
            mac.update(len(part).to_bytes(8, "little"))
            mac.update(part)
        return mac.digest()

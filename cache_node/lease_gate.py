"""Leases at the node's door: each lets one request in, once."""

import time
from collections import OrderedDict
from collections.abc import Callable

from kvmesh.errors import Code, RequestError, unimplemented
from kvmesh.lease import ExpiredLeaseError, LeaseKey, WrongLeaseError
from kvmesh.v1 import cache_node_pb2 as pb


class LeaseGate:
    """Lets a client's own request in when it has a lease, once."""

    def __init__(
        self, key: LeaseKey | None, node: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key
        self._node = node
        self._clock = clock
        self._used: OrderedDict[bytes, float] = OrderedDict()  # MAC to expiry, in order of claims

    def claim(self, lease: bytes, message: pb.NodeGenerateRequest) -> None:
        """Gives `message` the salt that the router meant it to have.

        Raises PERMISSION_DENIED for a lease that is not right or was used, FAILED_PRECONDITION for
        one that has expired, UNIMPLEMENTED from a node without a key.
        """
        if self._key is None:
            raise unimplemented("lease", "this node has no fleet key (--fleet-key-file)")
        now = self._clock()
        try:
            right = self._key.check(lease, message, self._node, now)
        except WrongLeaseError:
            problem = "is not one of this fleet for this request on this node"
            raise _refused(Code.PERMISSION_DENIED, problem) from None
        except ExpiredLeaseError:
            raise _refused(Code.FAILED_PRECONDITION, "has expired, ask for another") from None
        self._forget(now)
        if right.mac in self._used:
            raise _refused(Code.PERMISSION_DENIED, "was used already")
        self._used[right.mac] = right.expires
        message.salt = right.salt

    def _forget(self, now: float) -> None:
        """Expired ones, from the oldest claim on: a lease lives for seconds, so the rest is few."""
        while self._used and next(iter(self._used.values())) < now:
            self._used.popitem(last=False)


def _refused(code: Code, problem: str) -> RequestError:
    return RequestError(code, f"lease: {problem}", field="lease")

"""What admission says no with."""

import grpc

from kvmesh.errors import Code, RequestError


class RefusedError(RequestError):
    """A request that does not get in now. `reason` is one of a few words, for a metric."""

    def __init__(
        self, code: grpc.StatusCode, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(code, message, retry_after=retry_after)
        self.reason = reason


def refused(reason: str, message: str, retry_after: float) -> RefusedError:
    """RESOURCE_EXHAUSTED: the client's own limits or a full queue; come back then."""
    return RefusedError(Code.RESOURCE_EXHAUSTED, reason, message, retry_after)

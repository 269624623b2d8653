"""What a request's way through the router tells of itself while it goes on."""

from typing import TYPE_CHECKING, Protocol

from grpc import aio

if TYPE_CHECKING:
    from router.job import Job
    from router.placement import Placed


class Trace(Protocol):
    """Of one request. Never raises."""

    def dispatched(
        self, job: "Job", placed: "Placed", seconds: float, metadata: aio.Metadata
    ) -> aio.Metadata:
        """A node was chosen, which took so long; a dispatch before it has failed. Returns what the
        node is sent: `metadata`, which it may change.
        """


class Untraced:
    """While no traces are wanted."""

    def dispatched(
        self, _job: "Job", _placed: "Placed", _seconds: float, metadata: aio.Metadata
    ) -> aio.Metadata:
        return metadata


UNTRACED = Untraced()

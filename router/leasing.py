"""From a request that has passed every check to a lease for it."""

from google.protobuf import duration_pb2

from kvmesh.errors import invalid, unimplemented
from kvmesh.v1 import inference_pb2 as pb
from router.charge import Charge
from router.holds import Holds
from router.job import Job
from router.leases import Leases
from router.ledger import Ledger
from router.placement import Placed, Placement
from router.request_log import Entry
from router.sender import Sender
from router.slot import Slot
from router.tenants import Tenant

MAX_AVOIDED = 64
"""Names of nodes that one request may want to keep away from."""


class Leasing:
    """Answers Route. Every lease that it gives out is in `leases` until it ends."""

    def __init__(
        self,
        placement: Placement,
        sender: Sender,
        ledger: Ledger,
        leases: Leases,
        *,
        node_tls: bool,
    ) -> None:
        """`node_tls`: nodes speak TLS, to clients too."""
        self._node_tls = node_tls
        self._placement = placement
        self._sender = sender
        self._ledger = ledger
        self._leases = leases
        self._expires_in = duration_pb2.Duration()
        self._expires_in.FromMilliseconds(int(leases.seconds * 1000))

    def check_enabled(self) -> None:
        """Raises UNIMPLEMENTED without a fleet key."""
        if not self._leases.enabled:
            raise unimplemented("lease", "this router has no fleet key (--fleet-key-file)")

    def check(self, request: pb.RouteRequest) -> None:
        """Raises UNIMPLEMENTED without a fleet key, INVALID_ARGUMENT by field."""
        self.check_enabled()
        if len(request.avoid) > MAX_AVOIDED:
            raise invalid("avoid", f"must name at most {MAX_AVOIDED}, has {len(request.avoid)}")

    def next_attempt(self, tenant: Tenant, request_id: str) -> int:
        """Of a request of `tenant`: 1 unless it has been routed before. The lease that it has then
        ends, with all that it holds.
        """
        return self._leases.give_up(tenant, request_id) + 1

    def lease(
        self,
        job: Job,
        request: pb.RouteRequest,
        attempt: int,
        slot: Slot,
        charge: Charge,
        entry: Entry,
        response: pb.RouteResponse,
    ) -> None:
        """Places `job` and signs a lease for it, which takes over `slot` and `charge`; both are
        closed when it fails. Fills in `response`, which is empty. `entry` gets a report of its own:
        with a part of the response all of it would be kept.

        Raises UNAVAILABLE when no node is up, those to avoid apart; ALREADY_EXISTS when another
        Route of the same request has come before this one meanwhile.
        """
        holds = Holds(self._ledger, slot, charge, entry)
        try:
            self._lease(job, request, attempt, holds, response)
        except BaseException:
            holds.close()
            raise

    def _lease(
        self,
        job: Job,
        request: pb.RouteRequest,
        attempt: int,
        holds: Holds,
        response: pb.RouteResponse,
    ) -> None:
        placed = self._place(job, attempt, request)
        holds.reservation = placed.reservation
        dispatch = response.dispatch
        self._sender.fill(dispatch, job, placed, request.resume)
        holds.entry.report = report = self._sender.report(job, placed)
        report.queue_us = int(holds.charge.waited * 1e6)
        salt = job.prompt.salt  # travels in the lease
        response.lease = self._leases.grant(dispatch, placed.node.name, salt, holds)
        response.address = placed.node.address
        response.expires_in.CopyFrom(self._expires_in)
        response.route.CopyFrom(report)
        response.tls = self._node_tls
        if request.without_token_ids and job.request.HasField("token_ids"):
            dispatch.ClearField("token_ids")

    def _place(self, job: Job, attempt: int, request: pb.RouteRequest) -> Placed:
        tried = self._placement.addresses(request.avoid) if request.avoid else ()
        name = job.request.request_id
        return self._placement.place(name, job.prompt, job.model, attempt, job.size, tried)

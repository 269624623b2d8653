"""The router and its fleet at one moment, for operators."""

import time
from collections.abc import Iterator

from kvmesh import __version__
from kvmesh.v1 import fleet_pb2 as pb
from router.admission import Admission
from router.fair_queue import FairQueue, PriorityClass
from router.fleet import Fleet
from router.fleet_view import FleetView
from router.rates import total
from router.request_log import Entry, RequestLog


class Overview:
    """Reads what the parts of the router know, and changes nothing. Never tells a prompt."""

    def __init__(
        self,
        fleet: Fleet,
        view: FleetView,
        policy: str,
        admission: Admission,
        queue: FairQueue,
        requests: RequestLog,
    ) -> None:
        self._fleet = fleet
        self._view = view
        self._policy = policy
        self._admission = admission
        self._queue = queue
        self._requests = requests

    def read(self) -> pb.OverviewResponse:
        wall, now = time.time(), time.monotonic()
        nodes = self._view.nodes()
        return pb.OverviewResponse(
            now_us=_us(wall),
            version=__version__,
            model=self._fleet.model.name if self._fleet.defined else "",
            policy=self._policy,
            rates=total([each.rates for each in nodes]),
            in_flight=self._admission.in_flight,
            queue=self._classes(now),
            nodes=nodes,
            requests=[_ended(each, wall - now) for each in reversed(self._requests.last)],
        )

    def _classes(self, now: float) -> Iterator[pb.QueueClass]:
        waiting = list(self._queue)
        for priority in PriorityClass:
            arrivals = [each.arrived for each in waiting if each.priority is priority]
            yield pb.QueueClass(
                priority=priority.name.lower(),
                waiting=len(arrivals),
                oldest_us=_us(now - min(arrivals, default=now)),
            )


def _ended(entry: Entry, epoch: float) -> pb.EndedRequest:
    """`epoch`: seconds since 1970 at which the monotonic clock was 0."""
    first = entry.first_frame
    ended = pb.EndedRequest(
        ended_us=_us(epoch + entry.ended),
        request_id=entry.report.request_id or entry.request_id,
        endpoint=entry.endpoint,
        code=entry.code.name,
        error=entry.error,
        tenant=entry.tenant,
        route=entry.report,
        summary=entry.summary,
        ttft_us=_us(first - entry.started) if first is not None else 0,
        total_us=_us(entry.ended - entry.started),
        resumes=entry.resumes,
    )
    ended.route.ClearField("candidates")
    return ended


def _us(seconds: float) -> int:
    return max(0, int(seconds * 1e6))

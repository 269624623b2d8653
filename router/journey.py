"""A request's way from node to node, until one has answered it to the end."""

import asyncio
import time

import structlog

from kvmesh.errors import Code, RequestError, unavailable
from kvmesh.v1 import generate_pb2 as pb
from router.job import Job
from router.metrics import RouterMetrics
from router.node_call import Life, NodeCall, NodeFailed
from router.refusals import Refusals
from router.relayed import Relayed
from router.retry_budget import RetryBudget
from router.sender import Progress, Sender

log = structlog.get_logger("router")

FIRST_PAUSE, LAST_PAUSE = 0.05, 0.5
"""Seconds between two rounds in which a stream that lost its node asks the others."""

# A node may be there soon, or have room soon.
_PASSING = frozenset((Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED))

Arrived = tuple[NodeCall, bytes | None]
"""A call that has given its first frame, and that frame."""


class Journey:
    """Has at most one call at a time: the last one is closed before the next begins.

    start ──▶ node ──refuses / lost──▶ next node    each once, under the retry budget
               │
           first token ──lost──▶ go_on ──▶ another node, with the output so far
    """

    def __init__(
        self,
        job: Job,
        sender: Sender,
        budget: RetryBudget,
        metrics: RouterMetrics,
        resume_timeout: float,
    ) -> None:
        self.job = job
        self.report = pb.RouteReport()  # of where it began
        self._sender = sender
        self._budget = budget
        self._metrics = metrics
        self._resume_timeout = resume_timeout
        self.resumes = 0
        self._attempts = 0
        self._lost: set[Life] = set()  # without a frame in between

    async def start(self) -> Arrived:
        """Raises RESOURCE_EXHAUSTED when there are nodes and all are full, UNAVAILABLE when there
        are none; every other status of a node ends it as it came.
        """
        call, frame = await self._round(Refusals(), ())
        self._metrics.first_token(time.monotonic() - self.job.arrived)
        return call, frame

    async def go_on(self, last: NodeCall, failed: NodeFailed, relayed: Relayed) -> Arrived:
        """Another call, whose frames follow those of `last`. For a while nodes that are full, or
        not back yet, are asked again. Raises RequestError.
        """
        progress = self._progress(relayed)
        refusals = Refusals(lost=set() if relayed.progressed else self._lost)
        relayed.progressed = False
        refusals.add(last, failed)
        self._lost = refusals.lost
        try:
            if refusals.dangerous:
                raise refusals.verdict()
            call, frame = await self._rounds(refusals, progress)
        except RequestError:
            self._metrics.resumed("failed")
            raise
        self.resumes += 1
        self._metrics.resumed("done")
        self._log(last, call, progress)
        return call, frame

    def _progress(self, relayed: Relayed) -> Progress:
        progress = relayed.resume() if self.job.streams else None
        if progress is None:
            self._metrics.resumed("impossible")
            raise unavailable("such an answer cannot go on elsewhere")
        return progress

    async def _rounds(self, refusals: Refusals, progress: Progress) -> Arrived:
        until = min(self.job.deadline, time.monotonic() + self._resume_timeout)
        pause = FIRST_PAUSE
        while True:
            try:
                return await self._round(refusals, progress)
            except RequestError as error:
                late = time.monotonic() + pause > until
                if late or refusals.dangerous or error.code not in _PASSING:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
            refusals = Refusals(lost=refusals.lost)

    async def _round(self, refusals: Refusals, progress: Progress) -> Arrived:
        """Tries each node at most once. The first try is free, the others are retries."""
        call = self._send(refusals, progress)
        while True:
            try:
                return call, await self._first_frame(call)
            except NodeFailed as failed:
                refusals.add(call, failed)
                self._sender.refused(self.job, call.placed)
                self._metrics.retried(failed.error.code)
                if refusals.dangerous or not self._budget.can_withdraw:
                    raise refusals.verdict() from failed
            call = self._send(refusals, progress)
            self._budget.withdraw()

    def _send(self, refusals: Refusals, progress: Progress) -> NodeCall:
        self._attempts += 1
        try:
            call = self._sender.send(self.job, self._attempts, refusals.tried, progress)
        except RequestError as error:
            if error.code == Code.UNAVAILABLE and refusals.errors:
                raise refusals.verdict() from refusals.errors[-1]
            raise
        if not progress:
            self.report = self._sender.report(self.job, call.placed)
        return call

    async def _first_frame(self, call: NodeCall) -> bytes | None:
        """On any other end releases reservation and call."""
        try:
            return await call.first_frame()
        except BaseException:
            call.close()
            raise

    def _log(self, last: NodeCall, call: NodeCall, progress: Progress) -> None:
        log.info(
            "resumed",
            request_id=self.job.request.request_id,
            attempt=self._attempts,
            lost=last.node_name,
            node=call.node_name,
            output_tokens=sum(len(each.token_ids) // 4 for each in progress),
        )

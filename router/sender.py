"""Sends a request to the node that placement chooses."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf

from kvmesh.v1 import cache_node_pb2
from kvmesh.v1 import generate_pb2 as pb
from router.job import Job
from router.ledger import Ledger
from router.metadata import to_node
from router.metrics import RouterMetrics
from router.node import FrameCall
from router.node_call import NodeCall
from router.patience import Patience
from router.placement import Placed, Placement
from router.prompt import TOKEN_BYTES, Prompt

Progress = Sequence[cache_node_pb2.Resume]
"""What the samples have already; empty for a request that begins."""


class Sender:
    """Choice, reservation and call are one step: nothing of a request that fails here is left."""

    def __init__(
        self,
        placement: Placement,
        ledger: Ledger,
        router_id: str,
        metrics: RouterMetrics,
        patience: Patience,
    ) -> None:
        self._placement = placement
        self._ledger = ledger
        self._router_id = router_id
        self._metrics = metrics
        self._patience = patience

    def send(
        self, job: Job, attempt: int, tried: Collection[str], progress: Progress = ()
    ) -> NodeCall:
        """The caller closes the call. Raises UNAVAILABLE when no node is left but those `tried`."""
        start = time.perf_counter_ns()
        prompt = _with_output(job.prompt, progress)
        name, size = job.request.request_id, job.size
        placed = self._placement.place(name, prompt, job.model, attempt, size, tried)
        elapsed = time.perf_counter_ns() - start
        self._metrics.routed(self._placement.policy, placed.choice, job.prompt, elapsed)
        try:
            call = self._call(job, placed, progress, elapsed / 1e9)
        except BaseException:
            self._ledger.release(placed.reservation)
            raise
        return NodeCall(call, placed, self._ledger, self._patience_with(job))

    def report(self, job: Job, placed: Placed) -> pb.RouteReport:
        """What the client is told of the choice."""
        report = self._placement.report(job.request, job.prompt, placed.choice)
        report.attempt = placed.reservation.attempt
        elapsed = int((time.monotonic() - job.arrived) * 1e6)
        report.router_us = max(elapsed - job.prompt.tokenize_us, 0)
        if job.request.explain:
            report.candidates.extend(
                self._placement.explain(job.prompt, placed.choice, placed.candidates)
            )
        return report

    def refused(self, job: Job, placed: Placed) -> None:
        """The node did not take it."""
        self._placement.refused(job.prompt, placed)

    def _patience_with(self, job: Job) -> Patience:
        if job.streams:
            return self._patience
        return replace(self._patience, first_token=inf)  # it comes with the last one

    def _call(self, job: Job, placed: Placed, progress: Progress, seconds: float) -> FrameCall:
        """`seconds` is what the choice took."""
        remaining = job.deadline - time.monotonic()
        metadata = job.trace.dispatched(job, placed, seconds, to_node(job.metadata))
        dispatch = cache_node_pb2.NodeGenerateRequest(salt=job.prompt.salt)
        self.fill(dispatch, job, placed, progress)
        return placed.node.generate(dispatch, metadata, timeout=max(remaining, 0.0))

    def fill(
        self,
        dispatch: cache_node_pb2.NodeGenerateRequest,
        job: Job,
        placed: Placed,
        progress: Progress,
    ) -> None:
        """Puts into `dispatch` all that the node gets but the salt: to copy one takes longer."""
        request = job.request
        dispatch.request_id = request.request_id
        dispatch.attempt = placed.reservation.attempt
        dispatch.router_id = self._router_id
        dispatch.dispatch_sequence = placed.reservation.sequence
        dispatch.epoch = placed.node.epoch
        dispatch.token_ids = job.prompt.token_ids
        dispatch.sampling.CopyFrom(request.sampling)
        dispatch.priority = request.priority
        dispatch.cache = request.cache
        dispatch.resume.extend(progress)


def _with_output(prompt: Prompt, progress: Progress) -> Prompt:
    """As the node has to compute it: the output so far goes behind the prompt."""
    output = sum(len(each.token_ids) for each in progress if not each.finished)
    return replace(prompt, count=prompt.count + output // TOKEN_BYTES) if output else prompt

"""What became of each request: the last ones, and a line in the log for every one, however it ends.
Never holds a prompt or an answer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Self

import structlog

from kvmesh.errors import Code, RequestError
from kvmesh.printable import printable
from kvmesh.v1 import generate_pb2 as pb
from router.metadata import Pair
from router.trace import UNTRACED, Trace

log = structlog.get_logger("router")

KEPT = 50
"""Requests that are remembered once they have ended."""

LONGEST_ID, LONGEST_ERROR = 128, 500
"""Characters: of an id that was refused for its length, and of an error that quotes the client."""


_NO_REPORT, _NO_SUMMARY = pb.RouteReport(), pb.Summary()


@dataclass(slots=True, eq=False)
class Entry:
    """Filled in as the request goes on, in its block; `keep` gets it when that is left.
    Times are time.monotonic's, in seconds.
    """

    endpoint: str
    request_id: str
    tenant: str
    started: float
    keep: Callable[["Entry"], None]
    report: pb.RouteReport = field(default_factory=lambda: _NO_REPORT)
    summary: pb.Summary = field(default_factory=lambda: _NO_SUMMARY)
    trace: Trace = UNTRACED
    prepared: float | None = None  # every check is passed, the prompt is tokens
    admitted: float | None = None
    first_frame: float | None = None
    resumes: int = 0
    code: Code = Code.OK
    error: str = ""
    ended: float = 0.0

    def answered(self, report: pb.RouteReport) -> None:
        """The first frame is there."""
        self.report, self.first_frame = report, time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if error is not None:
            self._failed(error)
        self.ended = time.monotonic()
        self.keep(self)

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, RequestError):
            self.code, self.error = error.code, printable(error.message[:LONGEST_ERROR])
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            self.code = Code.CANCELLED
        else:
            self.code = Code.INTERNAL


class RequestLog:
    """Keeps each entry when its block is left, the newest last, and writes a line if told to."""

    def __init__(self, enabled: bool) -> None:
        self.last: deque[Entry] = deque(maxlen=KEPT)
        self._enabled = enabled

    def entry(
        self, endpoint: str, request: pb.GenerateRequest, tenant: str, _client: Iterable[Pair] = ()
    ) -> Entry:
        """`_client`: its metadata."""
        request_id = printable(request.request_id[:LONGEST_ID])  # it may be a wrong one
        return Entry(endpoint, request_id, tenant, time.monotonic(), self._keep)

    def _keep(self, entry: Entry) -> None:
        self.last.append(entry)
        if self._enabled:
            _write(entry)


def _write(entry: Entry) -> None:
    report, summary = entry.report, entry.summary
    log.info(
        "request",
        request_id=report.request_id or entry.request_id,
        endpoint=entry.endpoint,
        code=entry.code.name,
        error=entry.error,
        node=report.node,
        reason=report.reason,
        attempt=report.attempt,
        resumes=entry.resumes,
        prompt_tokens=report.prompt_tokens,
        cached_tokens=summary.usage.cached.gpu + summary.usage.cached.cpu,
        completion_tokens=summary.usage.completion_tokens,
        router_us=report.router_us,
        tokenize_us=report.tokenize_us,
        admission_us=report.queue_us,
        queue_us=summary.queue_us,
        prefill_us=summary.prefill_us,
        seconds=round(entry.ended - entry.started, 6),
    )

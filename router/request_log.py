"""What became of each request: the last ones, and a line in the log for every one, however it ends.
Never holds a prompt or an answer.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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


@dataclass(slots=True)
class Entry:
    """Filled in as the request goes on. Times are time.monotonic's, in seconds."""

    endpoint: str
    request_id: str
    tenant: str
    started: float
    report: pb.RouteReport = field(default_factory=pb.RouteReport)
    summary: pb.Summary = field(default_factory=pb.Summary)
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


class RequestLog:
    """Keeps each entry when its block is left, the newest last, and writes a line if told to."""

    def __init__(self, enabled: bool) -> None:
        self.last: deque[Entry] = deque(maxlen=KEPT)
        self._enabled = enabled

    @contextmanager
    def entry(
        self, endpoint: str, request: pb.GenerateRequest, tenant: str, _client: Iterable[Pair] = ()
    ) -> Iterator[Entry]:
        """`_client`: its metadata."""
        request_id = printable(request.request_id[:LONGEST_ID])  # it may be a wrong one
        entry = Entry(endpoint, request_id, tenant, time.monotonic())
        try:
            yield entry
        except RequestError as error:
            entry.code, entry.error = error.code, printable(error.message[:LONGEST_ERROR])
            raise
        except (asyncio.CancelledError, GeneratorExit):
            entry.code = Code.CANCELLED
            raise
        except BaseException:
            entry.code = Code.INTERNAL
            raise
        finally:
            entry.ended = time.monotonic()
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

"""One line per request that ends, however it ends. Never holds a prompt or an answer."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import generate_pb2 as pb

log = structlog.get_logger("router")


@dataclass(slots=True)
class Entry:
    """Filled in as the request goes on."""

    endpoint: str
    request_id: str
    report: pb.RouteReport = field(default_factory=pb.RouteReport)
    summary: pb.Summary = field(default_factory=pb.Summary)


class RequestLog:
    """Writes a line for each entry when its block is left, if told to."""

    def __init__(self, enabled: bool) -> None:
        self._enabled = enabled

    @contextmanager
    def entry(self, endpoint: str, request: pb.GenerateRequest) -> Iterator[Entry]:
        entry = Entry(endpoint, request.request_id)
        start = time.monotonic()
        code, message = Code.OK, ""
        try:
            yield entry
        except RequestError as error:
            code, message = error.code, error.message
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = Code.CANCELLED
            raise
        except BaseException:
            code = Code.INTERNAL
            raise
        finally:
            if self._enabled:
                _write(entry, code, message, time.monotonic() - start)


def _write(entry: Entry, code: Code, message: str, seconds: float) -> None:
    report, summary = entry.report, entry.summary
    log.info(
        "request",
        request_id=report.request_id or entry.request_id,
        endpoint=entry.endpoint,
        code=code.name,
        error=message,
        node=report.node,
        reason=report.reason,
        attempt=report.attempt,
        prompt_tokens=report.prompt_tokens,
        cached_tokens=summary.usage.cached.gpu + summary.usage.cached.cpu,
        completion_tokens=summary.usage.completion_tokens,
        router_us=report.router_us,
        tokenize_us=report.tokenize_us,
        admission_us=report.queue_us,
        queue_us=summary.queue_us,
        prefill_us=summary.prefill_us,
        seconds=round(seconds, 6),
    )

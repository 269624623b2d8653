"""A request's spans, around the log of requests.

request ── tokenize
        ├─ admission
        ├─ route, dispatch      once for each attempt
        │          └─ the node's spans
        └─ …
"""

import time
from collections.abc import Iterable

from grpc import aio

from kvmesh.errors import Code
from kvmesh.harmless import LogsOnce, harmless
from kvmesh.tracing import Span, SpanKind, Tracing, Value, context_of, parent_in, trace_headers
from kvmesh.v1 import generate_pb2 as pb
from router.job import Job
from router.metadata import Pair
from router.placement import Placed
from router.request_log import Entry, RequestLog
from router.trace import UNTRACED


class TracedRequestLog(RequestLog):
    """Each entry is a trace as well, or a part of the client's."""

    def __init__(self, enabled: bool, tracing: Tracing) -> None:
        super().__init__(enabled)
        self._tracing = tracing

    def entry(
        self, endpoint: str, request: pb.GenerateRequest, tenant: str, client: Iterable[Pair] = ()
    ) -> Entry:
        entry = super().entry(endpoint, request, tenant, client)
        entry.trace = RequestSpans(self._tracing, request, entry, client)
        return entry

    def _keep(self, entry: Entry) -> None:
        try:
            super()._keep(entry)
        finally:
            if isinstance(entry.trace, RequestSpans):
                entry.trace.end()
            entry.trace = UNTRACED  # the entry is kept, and the request with its prompt is not


class RequestSpans(LogsOnce):
    """Of one request. At most one dispatch is open: the next one begins when it has failed."""

    def __init__(
        self, tracing: Tracing, request: pb.GenerateRequest, entry: Entry, client: Iterable[Pair]
    ) -> None:
        super().__init__()
        self._tracing = tracing
        self._request = request
        self._entry = entry
        self._model: str | None = request.model or None
        self._root = tracing.begin("request", parent_in(client), entry.started, SpanKind.SERVER)
        self._dispatch: Span | None = None

    def dispatched(
        self, job: Job, placed: Placed, seconds: float, metadata: aio.Metadata
    ) -> aio.Metadata:
        self._dispatched(job, placed, seconds, metadata)
        return metadata

    @harmless
    def _dispatched(self, job: Job, placed: Placed, seconds: float, metadata: aio.Metadata) -> None:
        now = time.monotonic()
        self._model = job.model.name
        if self._dispatch is not None:
            self._tracing.end(self._dispatch, now, {}, "did not take it, or was lost with it")
        parent = context_of(self._root)
        choice = placed.choice
        route = self._tracing.begin("route", parent, now - seconds)
        told: dict[str, Value | None] = {
            "kvmesh.node": placed.node.name,
            "kvmesh.reason": choice.reason,
            "kvmesh.predicted_cached_tokens": choice.candidate.expected_tokens,
        }
        self._tracing.end(route, now, told)
        self._dispatch = self._tracing.begin("dispatch", parent, now, SpanKind.CLIENT)
        self._dispatch.set_attributes(
            {"kvmesh.node": placed.node.name, "kvmesh.attempt": placed.reservation.attempt}
        )
        for name, value in trace_headers(self._dispatch).items():
            metadata[name] = value

    @harmless
    def end(self) -> None:
        """Once the entry has ended."""
        entry, tracing = self._entry, self._tracing
        parent = context_of(self._root)
        error = None if entry.code == Code.OK else entry.error or entry.code.name
        tracing.add("tokenize", parent, entry.started, entry.prepared)
        tracing.add("admission", parent, entry.prepared, entry.admitted)
        if self._dispatch is not None:
            tracing.end(self._dispatch, entry.ended, {}, error)
        tracing.end(self._root, entry.ended, self._attributes(), error)

    def _attributes(self) -> dict[str, Value | None]:
        """OpenTelemetry's names for generative AI where it has one, ours for the rest."""
        entry, sampling = self._entry, self._request.sampling
        report, usage = entry.report, entry.summary.usage
        cached = usage.cached
        first = entry.first_frame
        answered = bool(entry.summary.node)
        return {
            "gen_ai.operation.name": "chat" if entry.endpoint == "chat" else "text_completion",
            "gen_ai.provider.name": "kvmesh",
            "gen_ai.request.model": self._model,
            "gen_ai.request.max_tokens": _given(sampling, "max_tokens"),
            "gen_ai.request.temperature": _given(sampling, "temperature"),
            "gen_ai.request.top_p": _given(sampling, "top_p"),
            "gen_ai.request.top_k": _given(sampling, "top_k"),
            "gen_ai.request.choice.count": _given(sampling, "n"),
            "gen_ai.usage.input_tokens": report.prompt_tokens or None,
            "gen_ai.usage.output_tokens": usage.completion_tokens if answered else None,
            "gen_ai.usage.cache_read.input_tokens": _found(cached) if answered else None,
            "gen_ai.response.time_to_first_chunk": first - entry.started if first else None,
            "kvmesh.request_id": report.request_id or entry.request_id,
            "kvmesh.endpoint": entry.endpoint,
            "kvmesh.tenant": entry.tenant or None,
            "kvmesh.code": entry.code.name,
            "kvmesh.node": entry.summary.node or report.node or None,
            "kvmesh.cached_tokens": _found(cached) if answered else None,
            "kvmesh.cached_tokens.cpu": cached.cpu if answered else None,
            "kvmesh.predicted_cached_tokens": report.predicted_cached_tokens if first else None,
            "kvmesh.preemptions": entry.summary.preemptions if answered else None,
            "kvmesh.resumes": entry.resumes,
        }


def _found(cached: pb.CachedTokens) -> int:
    return cached.gpu + cached.cpu + cached.remote


def _given(sampling: pb.SamplingParams, field: str) -> Value | None:
    value: Value = getattr(sampling, field)
    return value if sampling.HasField(field) else None  # type: ignore[arg-type]

"""A request's spans on its node, made once it has ended: queue, prefill, decode."""

import time

from cache_node.request_log import Metadata, RequestLog, finish_words
from cache_node.sequence import Request
from kvmesh.harmless import LogsOnce, harmless
from kvmesh.tracing import SpanKind, Tracing, Value, context_of, parent_in
from kvmesh.v1 import cache_node_pb2 as pb


class TracedRequestLog(RequestLog, LogsOnce):
    """Below the dispatch of the router that sent it. Times of a request are the engine's clock,
    which is time.monotonic.
    """

    def __init__(self, enabled: bool, tracing: Tracing, info: pb.NodeInfo) -> None:
        RequestLog.__init__(self, enabled)
        LogsOnce.__init__(self)
        self._tracing = tracing
        self._info = info

    def ended(self, message: pb.NodeGenerateRequest, request: Request, metadata: Metadata) -> None:
        super().ended(message, request, metadata)
        self._spans(message, request, metadata)

    @harmless
    def _spans(self, message: pb.NodeGenerateRequest, request: Request, metadata: Metadata) -> None:
        tracing, now = self._tracing, time.monotonic()
        arrived, ended = request.arrival, request.finished or now
        span = tracing.begin("node request", parent_in(metadata), arrived, SpanKind.SERVER)
        parent = context_of(span)
        tracing.add("queue", parent, arrived, request.first_scheduled or ended)
        tracing.add("prefill", parent, request.first_scheduled, request.first_token or ended)
        tracing.add("decode", parent, request.first_token, ended)
        cancelled = "cancelled" if request.finished is None else None
        tracing.end(span, ended, self._attributes(message, request), cancelled)

    def _attributes(
        self, message: pb.NodeGenerateRequest, request: Request
    ) -> dict[str, Value | None]:
        cached = request.cached_tokens + request.loaded_tokens
        return {
            "gen_ai.request.model": self._info.model,
            "gen_ai.usage.input_tokens": len(request.prompt),
            "gen_ai.usage.output_tokens": sum(seq.num_output for seq in request.sequences),
            "gen_ai.usage.cache_read.input_tokens": cached,
            "gen_ai.response.finish_reasons": finish_words(request),
            "kvmesh.request_id": message.request_id,
            "kvmesh.attempt": message.attempt,
            "kvmesh.node": self._info.name,
            "kvmesh.cached_tokens": cached,
            "kvmesh.cached_tokens.cpu": request.loaded_tokens,
            "kvmesh.preemptions": request.preemptions,
        }

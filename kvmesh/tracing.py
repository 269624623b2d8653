"""Spans for OpenTelemetry, sent by OTLP over gRPC. Imported only where they are wanted.

Sampling, headers, and what a process says of itself are set by OpenTelemetry's own variables
(OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, ...).
"""

import logging
import threading
import time
from collections.abc import Iterable, Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from kvmesh import __version__

__all__ = ["Context", "Span", "SpanKind", "Tracing"]

# What clients send is ignored where it is wrong, as W3C says, and not repeated in the log.
logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)

LAST_WORDS = 2.0  # seconds to send what is left at the end

Value = str | int | float | bool | list[str]
_W3C = TraceContextTextMapPropagator()


class Tracing:
    """Of one process, from construction to `close`. Spans leave on a thread of their own, in
    batches: a collector that is away costs some of them, and no request anything.

    All times are time.monotonic's, in seconds: spans can be made once it is over.
    """

    def __init__(self, endpoint: str, service: str, instance: str) -> None:
        """`endpoint` is http://host:port, or https:// with TLS."""
        own = {
            "service.name": service,
            "service.instance.id": instance,
            "service.version": __version__,
        }
        told = OTELResourceDetector().detect().attributes  # of the environment, which comes first
        resource = Resource.create({name: own[name] for name in own.keys() - told.keys()})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint)))
        self._tracer = self._provider.get_tracer("kvmesh", __version__)

    def begin(
        self, name: str, parent: Context | None, at: float, kind: SpanKind = SpanKind.INTERNAL
    ) -> Span:
        return self._tracer.start_span(
            name, parent if parent is not None else Context(), kind, start_time=_ns(at)
        )

    def end(
        self,
        span: Span,
        at: float,
        attributes: Mapping[str, Value | None],
        error: str | None = None,
    ) -> None:
        """Attributes that are None are left out; `error` is what went wrong."""
        known = {name: value for name, value in attributes.items() if value is not None}
        span.set_attributes(known)
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(_ns(at))

    def add(self, name: str, parent: Context, since: float | None, until: float | None) -> None:
        """A span that is over; none for one that did not begin or did not end."""
        if since is not None and until is not None:
            self.begin(name, parent, since).end(_ns(until))

    def close(self) -> None:
        """Sends what is left, for a moment. The exporter's own end can take longer than anybody
        wants to wait.
        """
        ending = threading.Thread(target=self._provider.shutdown, daemon=True, name="last spans")
        ending.start()
        ending.join(LAST_WORDS)


def context_of(span: Span) -> Context:
    """For the children of a span."""
    return set_span_in_context(span, Context())


def parent_in(metadata: Iterable[tuple[str, str | bytes]]) -> Context | None:
    """The W3C trace context that a client or a router has sent; None without a valid one."""
    found = _W3C.extract({name: str(value) for name, value in metadata if name.startswith("trace")})
    return found or None


def trace_headers(span: Span) -> dict[str, str]:
    """What makes `span` the parent of what the receiver does."""
    headers: dict[str, str] = {}
    _W3C.inject(headers, context_of(span))
    return headers


def _ns(at: float) -> int:
    return time.time_ns() - int((time.monotonic() - at) * 1e9)

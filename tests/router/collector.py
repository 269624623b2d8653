"""A collector of OpenTelemetry's spans: a real OTLP receiver over gRPC."""

import contextlib
from collections.abc import AsyncIterator

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """`spans` are all that have come, with the name of the service that they come from."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, trace_pb2.Span]] = []
        self.raw = b""
        self.endpoint = ""

    async def Export(self, request, context):  # noqa: N802
        self.raw += request.SerializeToString()
        for resource in request.resource_spans:
            service = attributes(resource.resource)["service.name"]
            found = (span for scope in resource.scope_spans for span in scope.spans)
            self.spans += [(service, span) for span in found]
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str) -> list[trace_pb2.Span]:
        """In the order of their begin."""
        found = (span for _, span in self.spans if span.name == name)
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def below(self, parent: trace_pb2.Span) -> list[str]:
        """Names of a span's children, in the order of their begin."""
        found = [span for _, span in self.spans if span.parent_span_id == parent.span_id]
        return [each.name for each in sorted(found, key=lambda span: span.start_time_unix_nano)]


def attributes(owner) -> dict[str, object]:
    """Of a span or of a resource."""
    return {each.key: _value(each.value) for each in owner.attributes}


def _value(value) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


@contextlib.asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    server = grpc.aio.server()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(made, server)
    made.endpoint = f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield made
    finally:
        await server.stop(None)

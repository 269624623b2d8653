"""The router's gRPC services. Requests come as raw bytes and answers leave as such: parsing is the
router's choice.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.message import Message

from kvmesh.errors import RequestError, abort
from kvmesh.v1 import fleet_pb2, inference_pb2
from kvmesh.v1 import generate_pb2 as pb
from router.admin import AdminRole
from router.core import Caller, RouterCore
from router.failures import as_request_error
from router.fleet_view import FleetView
from router.node import WINDOW_BYTES
from router.node_call import NodeError
from router.operations import Operations
from router.overview import Overview
from router.route_stream import RouteStream
from router.tenants import Tenant
from router.wire import parse

T = TypeVar("T")
Context = grpc.aio.ServicerContext[bytes, bytes]
Handler = Callable[[Any, bytes, Context, Tenant], Awaitable[T]]
BytesHandler = Callable[[bytes, Context], Awaitable[bytes]]

MAX_METADATA_BYTES = 16 << 10
"""Of a request. Nodes take more: what passed here passes there."""

SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),  # our own limit is lower and says more
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.so_reuseport", 0),
    # Between two bounds, which is the default, it would refuse by chance.
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
    # A client whose host is gone sends no cancel.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
    ("grpc.http2.write_buffer_size", WINDOW_BYTES),
    # Let clients ping as often as a load balancer's idle limit may need.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

INFERENCE, FLEET = "kvmesh.v1.Inference", "kvmesh.v1.Fleet"


def served(
    endpoint: str, *, bounded: bool = True, by_anybody: bool = False
) -> Callable[[Handler[T]], Any]:
    """Finds out whose request it is, counts it against the bounds of tenant and router, and lets no
    exception reach grpc, which would answer UNKNOWN: it becomes a status with details, or INTERNAL
    with an id.
    """

    def decorate(handler: Handler[T]) -> Any:
        @functools.wraps(handler)
        async def run(self: "_Front", raw: bytes, context: Context) -> T:
            client = None if by_anybody else context.invocation_metadata() or ()
            try:
                with self.core.arrival(endpoint, client, bounded=bounded) as tenant:
                    return await handler(self, raw, context, tenant)
            except Exception as error:  # noqa: BLE001  # whatever it is, the client gets a status
                failure = as_request_error(error)
            return await _end(context, failure)

        return run

    return decorate


def _caller(endpoint: str, context: Context, tenant: Tenant) -> Caller:
    metadata = context.invocation_metadata() or ()
    return Caller(endpoint, tenant, metadata, context.time_remaining())


async def _end(context: Context, error: RequestError) -> NoReturn:
    if isinstance(error, NodeError):
        await context.abort(error.code, error.message, tuple(error.trailing_metadata))
    await abort(context, error)


class _Front:
    def __init__(self, core: RouterCore, max_request_bytes: int) -> None:
        self.core = core
        self._max = max_request_bytes


class InferenceFront(_Front):
    """kvmesh.v1.Inference."""

    def __init__(self, core: RouterCore, max_request_bytes: int) -> None:
        super().__init__(core, max_request_bytes)
        self._route_streams: set[RouteStream] = set()

    def handlers(self) -> dict[str, Any]:
        return {
            "Generate": grpc.unary_stream_rpc_method_handler(self.generate),
            "Route": grpc.unary_unary_rpc_method_handler(self.route),
            "RouteStream": grpc.stream_stream_rpc_method_handler(self.route_stream),
            "Tokenize": grpc.unary_unary_rpc_method_handler(self.tokenize),
            "Detokenize": grpc.unary_unary_rpc_method_handler(self.detokenize),
        }

    @served("generate")
    async def generate(self, raw: bytes, context: Context, tenant: Tenant) -> None:
        request = parse(raw, pb.GenerateRequest, self._max)
        caller = _caller("generate", context, tenant)
        async with self.core.generate(request, caller) as answer:
            await context.send_initial_metadata(tuple(answer.initial_metadata))
            while (frame := await answer.read()) is not None:
                await context.write(frame)
            context.set_trailing_metadata(tuple(await answer.trailing_metadata()))

    @served("route", bounded=False)
    async def route(self, raw: bytes, context: Context, tenant: Tenant) -> bytes:
        request = parse(raw, inference_pb2.RouteRequest, self._max)
        caller = _caller("route", context, tenant)
        response = inference_pb2.RouteResponse()
        await self.core.route(request, caller, response)
        return _serialized(response)

    async def route_stream(self, _orders: object, context: Context) -> None:
        """Its orders are what is counted, as those of Route."""
        stream = RouteStream(self.core, context, self._max)
        self._route_streams.add(stream)
        try:
            await stream.serve()
        except Exception as error:  # noqa: BLE001  # as in `served`
            failure = as_request_error(error)
        else:
            return
        finally:
            self._route_streams.discard(stream)
        await _end(context, failure)

    def end_route_streams(self) -> None:
        """They would go on for as long as their clients do, who find another router now."""
        for stream in self._route_streams:
            stream.end()

    @served("tokenize")
    async def tokenize(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        request = parse(raw, inference_pb2.TokenizeRequest, self._max)
        return _serialized(await self.core.tokenize(request))

    @served("detokenize")
    async def detokenize(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        request = parse(raw, inference_pb2.DetokenizeRequest, self._max)
        text = await self.core.detokenize(request)
        return _serialized(inference_pb2.DetokenizeResponse(text=text))


class FleetFront(_Front):
    """kvmesh.v1.Fleet."""

    def __init__(
        self,
        core: RouterCore,
        view: FleetView,
        overview: Overview,
        operations: Operations,
        admin: AdminRole,
        max_request_bytes: int,
    ) -> None:
        super().__init__(core, max_request_bytes)
        self._view = view
        self._overview = overview
        self._operations = operations
        self._admin = admin

    def handlers(self) -> dict[str, Any]:
        served = {"ListNodes": self.list_nodes, "Explain": self.explain}
        for_admins = {
            "Overview": self.overview,
            "Drain": self.drain,
            "PinPrefix": self.pin_prefix,
            "UnpinPrefix": self.unpin_prefix,
            "ClearCache": self.clear_cache,
        }
        guarded = {name: self._for_admins(name, handler) for name, handler in for_admins.items()}
        return {
            name: grpc.unary_unary_rpc_method_handler(handler)
            for name, handler in (served | guarded).items()
        }

    def _for_admins(self, name: str, handler: BytesHandler) -> BytesHandler:
        async def guarded(raw: bytes, context: Context) -> bytes:
            try:
                self._admin.require(name, context)
            except RequestError as error:
                await abort(context, error)
            return await handler(raw, context)

        return guarded

    @served("list_nodes", bounded=False, by_anybody=True)
    async def list_nodes(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        parse(raw, fleet_pb2.ListNodesRequest, self._max)
        return _serialized(fleet_pb2.ListNodesResponse(nodes=self._view.nodes()))

    @served("explain")
    async def explain(self, raw: bytes, context: Context, tenant: Tenant) -> bytes:
        request = parse(raw, fleet_pb2.ExplainRequest, self._max).request
        caller = _caller("explain", context, tenant)
        route = await self.core.explain(request, caller)
        return _serialized(fleet_pb2.ExplainResponse(route=route))

    # Of those that are for admins `handlers` sees to who may.

    @served("overview", bounded=False, by_anybody=True)
    async def overview(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        parse(raw, fleet_pb2.OverviewRequest, self._max)
        return _serialized(self._overview.read())

    @served("drain", bounded=False, by_anybody=True)
    async def drain(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        request = parse(raw, fleet_pb2.FleetDrainRequest, self._max)
        return _serialized(await self._operations.drain(request))

    @served("pin_prefix", bounded=False, by_anybody=True)
    async def pin_prefix(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        request = parse(raw, fleet_pb2.PinPrefixRequest, self._max)
        return _serialized(await self._operations.pin_prefix(request))

    @served("unpin_prefix", bounded=False, by_anybody=True)
    async def unpin_prefix(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        request = parse(raw, fleet_pb2.UnpinPrefixRequest, self._max)
        return _serialized(await self._operations.unpin_prefix(request))

    @served("clear_cache", bounded=False, by_anybody=True)
    async def clear_cache(self, raw: bytes, _context: Context, _tenant: Tenant) -> bytes:
        request = parse(raw, fleet_pb2.ClearCacheRequest, self._max)
        return _serialized(await self._operations.clear_cache(request))


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()

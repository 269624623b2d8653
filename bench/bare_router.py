"""What a router on grpc.aio costs at least: the same calls, with nothing done in them."""

from typing import Any, cast

import grpc

from kvmesh.v1 import cache_node_pb2, inference_pb2
from kvmesh.v1 import generate_pb2 as pb
from router.grpc_front import INFERENCE, SERVER_OPTIONS, Context
from router.node import CHANNEL_OPTIONS, Node


class BareRouter:
    """Relays every request to the one node; leases are empty, and let in by a node without a gate.

    It relays as a router does: initial metadata, frames unparsed, trailing metadata.
    """

    def __init__(self, address: str) -> None:
        """`address` is the node's, host:port."""
        channel = grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
        self._node = Node(address, channel, address)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)

    async def start(self) -> int:
        """Returns the port."""
        handlers: dict[str, Any] = {
            "Generate": grpc.unary_stream_rpc_method_handler(self._generate),
            "Route": grpc.unary_unary_rpc_method_handler(self._route),
            "RouteStream": grpc.stream_stream_rpc_method_handler(self._route_stream),
        }
        generic = grpc.method_handlers_generic_handler(INFERENCE, handlers)
        self._server.add_generic_rpc_handlers((generic,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return port

    async def _generate(self, raw: bytes, context: Context) -> None:
        dispatch = _dispatch(pb.GenerateRequest.FromString(raw))
        call = self._node.generate(dispatch, grpc.aio.Metadata(), None)
        await context.send_initial_metadata(tuple(await call.initial_metadata()))
        while (frame := await call.read()) is not grpc.aio.EOF:
            await context.write(cast(bytes, frame))
        context.set_trailing_metadata(tuple(await call.trailing_metadata()))

    async def _route(self, raw: bytes, _context: Context) -> bytes:
        return self._response(raw).SerializeToString()

    async def _route_stream(self, _orders: object, context: Context) -> None:
        while isinstance(raw := await context.read(), bytes):  # until EOF
            replies = inference_pb2.RouteReplies()
            for order in inference_pb2.RouteOrders.FromString(raw).orders:
                replies.replies.add(id=order.id, lease=self._response(order.request))
            await context.write(replies.SerializeToString())

    def _response(self, request: bytes) -> inference_pb2.RouteResponse:
        dispatch = _dispatch(inference_pb2.RouteRequest.FromString(request).request)
        return inference_pb2.RouteResponse(address=self._node.address, dispatch=dispatch)


def _dispatch(request: pb.GenerateRequest) -> cache_node_pb2.NodeGenerateRequest:
    return cache_node_pb2.NodeGenerateRequest(
        token_ids=request.token_ids, sampling=request.sampling
    )

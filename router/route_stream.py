"""Leases over a stream that stays open: a message each way carries many."""

import asyncio
from contextlib import suppress

import grpc

from kvmesh.errors import RequestError, invalid
from kvmesh.v1 import inference_pb2 as pb
from router.core import Caller, RouterCore
from router.failures import as_request_error
from router.refused_error import refused
from router.wire import parse

MAX_ORDERS, MAX_MESSAGE_BYTES = 64, 4 << 20
"""Of one message: everybody's streams wait for as long as it takes."""

MAX_OWED = 1024
"""Orders of a stream that have no answer yet, the most that a message can give up; and answers that
its client has not read, above which no more is read from it.
"""
OWED_RETRY = 1.0  # seconds

Context = grpc.aio.ServicerContext[bytes, bytes]


class RouteStream:
    """One client's stream.

        read ──▶ an order ──task──▶ its reply ─┐
          └────▶ an order ──task──▶ its reply ─┴▶ one message: all that are there when it is sent

    Who the client is, is found out for every order: a key that is taken away gets nothing more.
    """

    def __init__(self, core: RouterCore, context: Context, max_request_bytes: int) -> None:
        self._core = core
        self._context = context
        self._max = max_request_bytes
        self._client = tuple(context.invocation_metadata() or ())
        self._owed: dict[int, asyncio.Task[None]] = {}
        self._replies: list[bytes] = []  # serialized RouteReplies, which are one when joined
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._closing = False
        self._loop = asyncio.get_running_loop()

    async def serve(self) -> None:
        """Returns when the client has closed its side, or after `end`, and nothing is owed.

        Raises UNAUTHENTICATED for a client that is no tenant, UNIMPLEMENTED without a fleet key,
        INVALID_ARGUMENT for a message that is none. What waits when it is left is released.
        """
        self._core.check_leases(self._client)
        # Not to be cancelled: gRPC writes into the memory of a read that is under way. It ends by
        # itself with the call.
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(lambda _: self._news.set())
        try:
            while self._owed or self._replies or not (self._closing or reader.done()):
                await self._news.wait()
                self._news.clear()
                if reader.done():
                    reader.result()
                if self._replies:
                    await self._write()
        finally:
            self._closing = True
            self._written.set()
            for task in self._owed.values():
                task.cancel()

    def end(self) -> None:
        """Takes no more orders."""
        self._closing = True
        self._news.set()

    async def _read(self) -> None:
        with suppress(grpc.aio.UsageError):  # the client has gone
            while isinstance(raw := await self._context.read(), bytes):  # until EOF
                if self._closing:
                    return
                self._take(_orders(raw))
                while len(self._replies) > MAX_OWED and not self._closing:
                    self._written.clear()
                    await self._written.wait()

    async def _write(self) -> None:
        replies, self._replies = self._replies, []
        await self._context.write(b"".join(replies))
        self._written.set()

    def _take(self, message: pb.RouteOrders) -> None:
        for given_up in message.given_up:
            if (task := self._owed.pop(given_up, None)) is not None:
                task.cancel()
        for order in message.orders:
            number = order.id
            if number in self._owed:
                self._refuse(number, invalid("id", f"must not be that of another, is {number}"))
            elif len(self._owed) >= MAX_OWED:
                problem = f"the stream owes its limit of {MAX_OWED} answers"
                self._refuse(number, refused("route_stream", problem, OWED_RETRY))
            else:
                self._owed[number] = self._loop.create_task(self._answer(order))

    async def _answer(self, order: pb.RouteOrder) -> None:
        message = pb.RouteReplies()
        reply = message.replies.add(id=order.id)
        try:
            with self._core.metrics.observed("route"):
                tenant = self._core.tenant_of(self._client)
                request = parse(order.request, pb.RouteRequest, self._max)
                caller = Caller("route", tenant, self._client, _seconds(order))
                await self._core.route(request, caller, reply.lease)
        except Exception as error:  # noqa: BLE001  # whatever it is, the client gets a status
            reply.status = as_request_error(error).to_proto().SerializeToString()
        del self._owed[order.id]
        self._send(message)

    def _refuse(self, number: int, error: RequestError) -> None:
        with suppress(RequestError), self._core.metrics.observed("route"):
            raise error
        reply = pb.RouteReply(id=number, status=error.to_proto().SerializeToString())
        self._send(pb.RouteReplies(replies=[reply]))

    def _send(self, message: pb.RouteReplies) -> None:
        self._replies.append(message.SerializeToString())
        self._news.set()


def _seconds(order: pb.RouteOrder) -> float | None:
    """Until the order's deadline."""
    if not order.HasField("timeout"):
        return None
    try:
        return order.timeout.ToTimedelta().total_seconds() or None
    except (ValueError, OverflowError) as error:
        raise invalid("timeout", f"is no time in seconds: {error}") from error


def _orders(raw: bytes) -> pb.RouteOrders:
    message = parse(raw, pb.RouteOrders, MAX_MESSAGE_BYTES)
    if len(message.orders) > MAX_ORDERS:
        count = len(message.orders)
        raise invalid("orders", f"must be at most {MAX_ORDERS} in a message, are {count}")
    if len(message.given_up) > MAX_OWED:
        count = len(message.given_up)
        raise invalid("given_up", f"must be at most {MAX_OWED} in a message, are {count}")
    return message

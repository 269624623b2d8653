"""Leases for all requests of a client, over one stream to its router."""

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import DecodeError
from google.rpc import status_pb2

from kvmesh.errors import Code, RequestError, from_proto, from_rpc_error, unavailable
from kvmesh.v1 import inference_pb2 as pb
from kvmesh.v1 import inference_pb2_grpc

MAX_ORDERS, MAX_BYTES = 64, 1 << 20  # of a message; a longer request goes by Route
MAX_OWED = 1024  # orders that a stream has not answered; more wait here
GATHER = 0.005
"""Seconds that orders wait at most for the first answer to the message before theirs: a router that
is at work takes them together (Nagle, RFC 896).
"""
UNSERVED = 60.0  # seconds until a router without streams is asked again

_BROKEN = frozenset((Code.UNAVAILABLE, Code.CANCELLED))
_Metadata = tuple[tuple[str, str | bytes], ...]

Route = Future[pb.RouteResponse]


class NotServedError(Exception):
    """This request cannot go by a stream: it is too long, or the router has none."""


@dataclass(slots=True, eq=False)
class _Order:
    number: int
    request: bytes
    deadline: float | None  # of time.monotonic
    token_ids: bytes  # of its prompt, which do not come back with the lease
    route: Route = field(default_factory=Future)
    again: bool = False  # it has been lost with a stream before

    def to_proto(self) -> pb.RouteOrder:
        order = pb.RouteOrder(id=self.number, request=self.request)
        if self.deadline is not None:
            left = max(0.001, self.deadline - time.monotonic())
            order.timeout.FromNanoseconds(int(left * 1e9))
        return order

    def answer(self, reply: pb.RouteReply) -> None:
        if reply.WhichOneof("result") == "lease":
            if self.token_ids:
                reply.lease.dispatch.token_ids = self.token_ids
            if self.route.set_running_or_notify_cancel():
                self.route.set_result(reply.lease)
        else:
            self.fail(_error_in(reply))

    def fail(self, error: Exception) -> None:
        if self.route.set_running_or_notify_cancel():
            self.route.set_exception(error)


def _error_in(reply: pb.RouteReply) -> RequestError:
    try:
        return from_proto(status_pb2.Status.FromString(reply.status))
    except (DecodeError, ValueError) as error:  # a code that there is not
        return RequestError(Code.INTERNAL, f"the router's reply is none: {error}")


class RouteStreams:
    """Thread-safe. Opens a stream when it is needed, and another after that has ended.

    What a stream owed is asked again on the next one, once: a router that shuts down ends streams
    while orders are on their way.
    """

    def __init__(self, router: inference_pb2_grpc.InferenceStub, metadata: _Metadata) -> None:
        self._router = router
        self._metadata = metadata
        self._numbers = itertools.count(1)
        self._changing = threading.Lock()
        self._stream: _Stream | None = None
        self._unserved_until = 0.0
        self._closed = False

    def ask(self, request: pb.RouteRequest, timeout: float | None) -> Route:
        """A lease, or the RequestError that Route would raise, or NotServedError, when it is there.
        To cancel it gives the order up. `timeout` in seconds is for the router.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        request.without_token_ids = True
        raw = request.SerializeToString()
        request.without_token_ids = False  # it may go by Route
        order = _Order(next(self._numbers), raw, deadline, request.request.token_ids)
        if len(order.request) > MAX_BYTES or time.monotonic() < self._unserved_until:
            order.fail(NotServedError())
        else:
            self._send(order)
        return order.route

    def close(self) -> None:
        """What is owed gets CANCELLED, and so does what is asked for from then on."""
        with self._changing:
            self._closed = True
            if self._stream is not None:
                self._stream.close()

    def lost(self, orders: list[_Order], error: RequestError) -> None:
        """A stream has ended with `error`, and still owed these."""
        if error.code is Code.UNIMPLEMENTED:
            self._unserved_until = time.monotonic() + UNSERVED
        for order in orders:
            if error.code is Code.UNIMPLEMENTED:
                order.fail(NotServedError())
            elif error.code in _BROKEN and not order.again:
                order.again = True
                self._send(order)
            else:
                order.fail(error)

    def _send(self, order: _Order) -> None:
        with self._changing:
            if self._closed:
                order.fail(RequestError(Code.CANCELLED, "the client is closed"))
                return
            if self._stream is None or not self._stream.send(order):
                self._stream = _Stream(self._router, self._metadata, self.lost, order)
            stream = self._stream

        def give_up(route: Route) -> None:
            if route.cancelled():
                stream.give_up(order)

        order.route.add_done_callback(give_up)


class _Stream:
    """One stream, from its first order to its end.

    send ──▶ waiting ──a message: all that wait──▶ owed ──a reply──▶ answered
                └─────────────── the stream ends ───┴──▶ lost
    """

    def __init__(
        self,
        router: inference_pb2_grpc.InferenceStub,
        metadata: _Metadata,
        lost: Callable[[list[_Order], RequestError], None],
        first: _Order,
    ) -> None:
        self._lost = lost
        self._changed = threading.Condition()
        self._waiting = deque([first])
        self._given_up: list[int] = []
        self._owed: dict[int, _Order] = {}
        self._asking = False  # the last message has no answer yet
        self._ended = False
        self._call = router.RouteStream(self._messages(), metadata=metadata)
        threading.Thread(target=self._read, name="route-stream", daemon=True).start()

    def send(self, order: _Order) -> bool:
        """False when the stream has ended."""
        with self._changed:
            if not self._ended:
                self._waiting.append(order)
                self._changed.notify()
            return not self._ended

    def give_up(self, order: _Order) -> None:
        """Nobody waits for it any more."""
        with self._changed:
            if self._owed.pop(order.number, None) is not None:
                self._given_up.append(order.number)
                self._changed.notify()
            elif order in self._waiting:
                self._waiting.remove(order)

    def close(self) -> None:
        self._call.cancel()

    def _messages(self) -> Iterator[pb.RouteOrders]:
        """On a thread of gRPC's, which comes for the next when it has sent the last."""
        while (message := self._next_message()) is not None:
            yield message

    def _next_message(self) -> pb.RouteOrders | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._given_up or self._next_order())
            self._changed.wait_for(lambda: self._ended or not self._asking, GATHER)
            if self._ended:
                return None
            message, size = pb.RouteOrders(given_up=self._given_up), 0
            self._given_up.clear()
            while len(message.orders) < MAX_ORDERS and (order := self._next_order()) is not None:
                size += len(order.request)
                if message.orders and size > MAX_BYTES:
                    break
                self._owed[order.number] = self._waiting.popleft()
                message.orders.append(order.to_proto())
            self._asking = bool(message.orders)
            return message

    def _next_order(self) -> _Order | None:
        return self._waiting[0] if self._waiting and len(self._owed) < MAX_OWED else None

    def _read(self) -> None:
        try:
            for message in self._call:
                self._answer(message)
            error = unavailable("the router has ended the stream")
        except grpc.RpcError as failure:
            error = from_rpc_error(failure)
        with self._changed:
            self._ended = True
            self._changed.notify()
            left = [*self._owed.values(), *self._waiting]
        self._lost(left, error)

    def _answer(self, message: pb.RouteReplies) -> None:
        with self._changed:
            owed = [(self._owed.pop(reply.id, None), reply) for reply in message.replies]
            self._asking = False
            self._changed.notify()
        for order, reply in owed:
            if order is not None:
                order.answer(reply)

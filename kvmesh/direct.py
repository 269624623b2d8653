"""A request that streams straight from a node, on a lease that the router gives."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from kvmesh.errors import Code, RequestError, from_rpc_error
from kvmesh.lease import METADATA
from kvmesh.route_stream import NotServedError, RouteStreams
from kvmesh.v1 import cache_node_pb2, cache_node_pb2_grpc, inference_pb2, inference_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

MAX_ROUTES = 5
"""Leases that one request takes, one after the other."""

# What another lease may put right: a node that is gone, full, or has started again; a lease that
# has expired on the way.
_AGAIN = frozenset(
    (Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION, Code.CANCELLED)
)
_Metadata = tuple[tuple[str, str | bytes], ...]


class DirectCall:
    """Frames as the router's Generate gives them. Iterate it once; `cancel` may come from another
    thread.

        Route ──▶ lease ──▶ node: frames ──▶ end
          ▲                   │
          └── node lost, full ┘  (with what has come so far)

    A router that gives no leases runs the request itself.
    """

    def __init__(
        self,
        router: inference_pb2_grpc.InferenceStub,
        streams: RouteStreams | None,
        channel_to: Callable[[str, bool], grpc.Channel],
        request: pb.GenerateRequest,
        timeout: float | None,
        metadata: _Metadata,
    ) -> None:
        """`channel_to(address, tls)` gives the channel to a node. `request` is taken over.

        Without `streams` leases come from Route: metadata of one request can go with a call only.
        """
        self._router = router
        self._streams = streams
        self._channel_to = channel_to
        self._request = request
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._metadata = metadata
        self._progress = _Progress(request.sampling.n or 1)
        self._avoid: list[str] = []
        self._call: Any = None
        self._cancelled = False

    def cancel(self) -> None:
        """Idempotent; ends the work for it wherever it is."""
        self._cancelled = True
        if self._call is not None:
            self._call.cancel()

    def __iter__(self) -> Iterator[pb.GenerateResponse]:
        """Raises grpc.RpcError, and RequestError when it is cancelled before it has a lease."""
        failure: grpc.RpcError | None = None
        for _ in range(MAX_ROUTES):
            try:
                route = self._route()
            except RequestError as error:
                if error.code is Code.UNIMPLEMENTED and failure is None:
                    yield from self._through_router()
                    return
                raise (error if self._cancelled else failure or error) from None
            try:
                yield from self._stream(route)
                return
            except grpc.RpcError as error:
                if error.code() not in _AGAIN or self._cancelled:
                    raise
                if self._progress.complete:
                    return  # all that was lost is the account of it
                failure = error
                self._learn(route, error)
        assert failure is not None
        raise failure

    def _route(self) -> inference_pb2.RouteResponse:
        request = inference_pb2.RouteRequest(
            request=self._request, avoid=self._avoid, resume=self._progress.resume()
        )
        if self._streams is not None:
            with suppress(NotServedError):
                return self._lease_of(self._streams.ask(request, self._left()))
        return self._lease_of(
            self._router.Route.future(request, timeout=self._left(), metadata=self._metadata)
        )

    def _lease_of(self, asked: Any) -> inference_pb2.RouteResponse:
        try:
            route: inference_pb2.RouteResponse = self._follow(asked).result(self._left())
        except grpc.RpcError as error:
            raise from_rpc_error(error) from None
        except (CancelledError, grpc.FutureCancelledError):
            raise RequestError(Code.CANCELLED, "cancelled by its caller") from None
        except (TimeoutError, grpc.FutureTimeoutError):
            asked.cancel()
            raise RequestError(Code.DEADLINE_EXCEEDED, "no lease has come in time") from None
        return route

    def _stream(self, route: inference_pb2.RouteResponse) -> Iterator[pb.GenerateResponse]:
        yield pb.GenerateResponse(route=route.route)
        channel = self._channel_to(route.address, route.tls)
        stub = cache_node_pb2_grpc.CacheNodeStub(channel)
        lease = ((METADATA, route.lease),)
        call = stub.Generate(route.dispatch, timeout=self._left(), metadata=lease)
        for frame in self._follow(call):
            self._progress.add(frame)
            yield frame

    def _through_router(self) -> Iterator[pb.GenerateResponse]:
        yield from self._follow(
            self._router.Generate(self._request, timeout=self._left(), metadata=self._metadata)
        )

    def _follow(self, call: Any) -> Any:
        """`cancel` ends it, even if it came before."""
        self._call = call
        if self._cancelled:
            call.cancel()
        return call

    def _learn(self, route: inference_pb2.RouteResponse, error: grpc.RpcError) -> None:
        """The next route is for the same request: its id, and the random numbers that it draws."""
        self._request.request_id = route.route.request_id
        self._request.sampling.seed = route.route.seed
        if error.code() is not Code.FAILED_PRECONDITION:
            self._avoid.append(route.route.node)

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


@dataclass(slots=True)
class _Sample:
    tokens: bytearray = field(default_factory=bytearray)  # packed
    text_bytes: int = 0
    finished: bool = False


class _Progress:
    """What has come of each sample, for the node that goes on."""

    def __init__(self, count: int) -> None:
        self._samples = [_Sample() for _ in range(count)]

    def add(self, frame: pb.GenerateResponse) -> None:
        for delta in frame.deltas:
            sample = self._samples[delta.index]
            sample.tokens += delta.token_ids
            sample.text_bytes += len(delta.text.encode())
            sample.finished = bool(delta.finish_reason)

    @property
    def complete(self) -> bool:
        return all(sample.finished for sample in self._samples)

    def resume(self) -> list[cache_node_pb2.Resume]:
        """Empty for a request of which nothing has come."""
        if not any(sample.tokens for sample in self._samples):
            return []
        return [
            cache_node_pb2.Resume(
                index=index,
                token_ids=bytes(sample.tokens),
                finished=sample.finished,
                text_bytes_sent=sample.text_bytes,
            )
            for index, sample in enumerate(self._samples)
        ]

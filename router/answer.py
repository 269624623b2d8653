"""A node's answer on its way to the client: frames that nobody parses."""

import asyncio
from typing import cast

from google.protobuf.message import DecodeError
from grpc import aio

from kvmesh.errors import Code, RequestError, from_rpc_error, unavailable
from kvmesh.v1 import generate_pb2 as pb
from router.fleet import Model
from router.ledger import Ledger
from router.metadata import USAGE, Pair, find, to_client, with_details
from router.node import FrameCall
from router.placement import Placed
from router.prompt import Prompt

# What a node says, or gRPC for it, when it does not take a request that another may take.
# FAILED_PRECONDITION is a node that has restarted since the router last heard of it; CANCELLED one
# that shuts down, for we did not cancel.
_TRY_ANOTHER = frozenset(
    (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.FAILED_PRECONDITION, Code.CANCELLED)
)
_GONE = frozenset((Code.UNAVAILABLE, Code.CANCELLED))


class NodeError(RequestError):
    """A node's own status, with its trailing metadata, to be passed on as it came."""

    def __init__(self, error: aio.AioRpcError) -> None:
        read = from_rpc_error(error)
        super().__init__(read.code, read.message, field=read.field, retry_after=read.retry_after)
        self.trailing_metadata = with_details(error.trailing_metadata())


class NodeFailed(Exception):  # noqa: N818  # what another node may still put right
    """The node did not take the request, or was lost before its first token."""

    def __init__(self, error: RequestError) -> None:
        super().__init__(error.message)
        self.error = error


class RunningCall:
    """One call to a node and its reservation, which end together, whichever way."""

    def __init__(self, call: FrameCall, placed: Placed, ledger: Ledger) -> None:
        self.call = call
        self.placed = placed
        self._ledger = ledger

    @property
    def node_name(self) -> str:
        return self.placed.node.name

    async def read(self) -> bytes | None:
        """The next frame, None at the end.

        Raises AioRpcError with the node's status, NodeFailed when the registry gave the node up.
        """
        try:
            frame = await self.call.read()
        except asyncio.CancelledError:
            if _we_are_cancelled():
                raise
            # It was the registry: a peer that hangs ends no call by itself.
            raise NodeFailed(unavailable(f"{self.node_name} gives no sign of life")) from None
        return None if frame is aio.EOF else cast(bytes, frame)

    async def first_frame(self) -> bytes | None:
        """Raises NodeFailed when another node may do better, NodeError with any other status."""
        try:
            frame = await self.read()
        except aio.AioRpcError as error:
            if error.code() in _TRY_ANOTHER:
                raise NodeFailed(from_rpc_error(error)) from error
            raise NodeError(error) from error
        self._ledger.prefilled(self.placed.reservation)
        return frame

    def close(self) -> None:
        """Idempotent. Tells the node at once if it has not finished."""
        self.call.cancel()
        self._ledger.release(self.placed.reservation)


def _we_are_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Answer:
    """A stream of serialized GenerateResponse frames. The route report is part of the first."""

    def __init__(
        self,
        running: RunningCall,
        report: pb.RouteReport,
        prompt: Prompt,
        model: Model,
        first: bytes | None,
    ) -> None:
        self.report = report
        self.prompt = prompt
        self.model = model
        self.frames = 0
        self._running = running
        self._first: bytes | None = first
        self._last = first or b""
        self._ended = first is None

    @property
    def node_name(self) -> str:
        return self._running.node_name

    async def initial_metadata(self) -> list[Pair]:
        return to_client(await self._running.call.initial_metadata())

    async def read(self) -> bytes | None:
        """The next frame, None at the end with status OK.

        Raises NodeError with the node's status, and UNAVAILABLE when the node is lost.
        """
        if self.frames == 0:
            self.frames = 1
            # Two serialized messages after each other are one with the fields of both.
            route = pb.GenerateResponse(route=self.report).SerializeToString()
            return route + (self._first or b"")
        if self._ended:
            return None
        frame = await self._next()
        if frame is None:
            self._ended = True
            return None
        self.frames += 1
        self._last = frame
        return frame

    async def _next(self) -> bytes | None:
        try:
            return await self._running.read()
        except NodeFailed as failed:
            raise self._lost(failed.error.message) from failed
        except aio.AioRpcError as error:
            if error.code() in _GONE:
                raise self._lost(error.details() or error.code().name) from error
            raise NodeError(error) from error

    def _lost(self, reason: str) -> RequestError:
        return unavailable(
            f"{self.node_name} was lost after {self.frames} frames of the answer: {reason}"
        )

    async def trailing_metadata(self) -> list[Pair]:
        """Once the stream has ended."""
        return to_client(await self._running.call.trailing_metadata())

    async def summary(self) -> pb.Summary:
        """How it ended, once it has: from the trailing metadata, else from the last frame; empty if
        neither has it.
        """
        packed = find(await self._running.call.trailing_metadata(), USAGE)
        try:
            if isinstance(packed, bytes):
                return pb.Summary.FromString(packed)
            return pb.GenerateResponse.FromString(self._last).summary
        except DecodeError:
            return pb.Summary()

    def close(self) -> None:
        """Idempotent. Ends the node's work if it has not ended, and releases the reservation."""
        self._running.close()

"""One call to a node and its reservation, which end together, whichever way."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar, cast

from grpc import aio

from kvmesh.errors import Code, RequestError, from_rpc_error, unavailable
from router.ledger import Ledger
from router.metadata import with_details
from router.node import FrameCall
from router.patience import Patience, Stage
from router.placement import Placed

T = TypeVar("T")

Life = tuple[str, int]
"""Name and epoch: a node from one start to the next."""

# What a node says, or gRPC for it, when it has not taken a request that another may take.
# FAILED_PRECONDITION is a node that has restarted since the router last heard of it.
_REFUSED = frozenset((Code.RESOURCE_EXHAUSTED, Code.FAILED_PRECONDITION))
# And when it is gone. CANCELLED is one that shuts down, for we did not cancel.
_GONE = frozenset((Code.UNAVAILABLE, Code.CANCELLED))
# What speaks against the node. What a client can bring about must not be among them.
_FAULTS = frozenset((Code.UNAVAILABLE, Code.INTERNAL, Code.UNKNOWN, Code.DATA_LOSS))


class NodeError(RequestError):
    """A node's own status, with its trailing metadata, to be passed on as it came."""

    def __init__(self, error: aio.AioRpcError) -> None:
        read = from_rpc_error(error)
        super().__init__(read.code, read.message, field=read.field, retry_after=read.retry_after)
        self.trailing_metadata = with_details(error.trailing_metadata())


class NodeFailed(Exception):  # noqa: N818  # what another node may still put right
    """The node has not taken the request, or was lost with it (`lost`)."""

    def __init__(self, error: RequestError, *, lost: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.lost = lost


class NodeCall:
    """Frames of one request from one node; the node's breaker hears how it went.

    Reads raise NodeFailed when another node may do better, NodeError with any other status. Whoever
    finds that the node is gone, or takes too long, gives the call up: reads raise NodeFailed then.
    """

    def __init__(self, call: FrameCall, placed: Placed, ledger: Ledger, patience: Patience) -> None:
        self.placed = placed
        self.life: Life = (placed.node.name, placed.node.epoch)
        self.stage = Stage.CONNECT
        self.initial_metadata: aio.Metadata | None = None  # there with the first frame
        self._trailing: aio.Metadata | None = None
        self._call = call
        self._ledger = ledger
        self._patience = patience
        self._waited: float | None = None  # seconds in this stage, None while nobody reads
        self._given_up: str | None = None
        self._at_fault = False
        self._trial = placed.node.breaker.began()
        placed.node.calls.add(self)

    @property
    def node_name(self) -> str:
        return self.placed.node.name

    async def first_frame(self) -> bytes | None:
        """The prompt weighs on the node no more once this has returned."""
        self.initial_metadata = await self._wait(self._call.initial_metadata())
        self.stage = Stage.FIRST_TOKEN
        frame = await self.read()
        self.stage = Stage.TOKENS
        self._ledger.prefilled(self.placed.reservation)
        self._judge(sound=True)
        return frame

    async def read(self) -> bytes | None:
        """The next frame, None at the end with status OK."""
        frame = await self._wait(self._call.read())
        return None if frame is aio.EOF else cast(bytes, frame)

    async def trailing_metadata(self) -> aio.Metadata | None:
        """Once the stream has ended."""
        if self._trailing is None:
            self._trailing = await self._call.trailing_metadata()
        return self._trailing

    def wait_longer(self, seconds: float) -> None:
        """So much time has passed. Gives the call up when its stage takes too long."""
        if self._waited is None:
            return
        self._waited += seconds
        limit = self._patience.of(self.stage)
        if self._waited > limit:
            self.give_up(f"did not {self.stage.value} within {limit:g} s")

    def give_up(self, reason: str, *, fault: bool = True) -> None:
        """`reason` goes on after the node's name; `fault`: it speaks against the node. The first
        one counts.
        """
        if self._given_up is None:
            self._given_up, self._at_fault = reason, fault
            self._call.cancel()

    def close(self) -> None:
        """Idempotent. Tells the node at once if it has not finished."""
        self._call.cancel()
        self._judge(sound=None)
        self.placed.node.calls.discard(self)
        self._ledger.release(self.placed.reservation)

    async def _wait(self, news: Awaitable[T]) -> T:
        self._waited = 0.0
        try:
            return await news
        except aio.AioRpcError as error:
            raise self._failure(error) from error
        except asyncio.CancelledError:
            if self._given_up is None or _we_are_cancelled():
                raise
            self._judge(sound=False if self._at_fault else None)
            gone = unavailable(f"{self.node_name} {self._given_up}")
            raise NodeFailed(gone, lost=True) from None
        finally:
            self._waited = None

    def _failure(self, error: aio.AioRpcError) -> Exception:
        code = error.code()
        self._judge(sound=False if code in _FAULTS else None)
        if code in _GONE | _REFUSED:
            return NodeFailed(from_rpc_error(error), lost=code in _GONE)
        return NodeError(error)

    def _judge(self, sound: bool | None) -> None:
        """Tells the breaker; None when nothing is known of the node. A trial has one verdict."""
        breaker = self.placed.node.breaker
        trial, self._trial = self._trial, False
        if sound is None:
            breaker.abandoned(trial)
        elif sound:
            breaker.succeeded(trial)
        else:
            breaker.failed(trial)


def _we_are_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

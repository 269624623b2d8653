"""A request that runs, as its client sees it."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

import grpc

from kvmesh.errors import RequestError, from_rpc_error
from kvmesh.packing import unpack_tokens
from kvmesh.v1 import generate_pb2 as pb


@dataclass(frozen=True, slots=True)
class Event:
    """New tokens. Text ends on a whole character, so it can lag the tokens."""

    text: str
    token_ids: list[int]
    finish_reason: str | None  # stop, length, abort; None while it goes on


@dataclass(slots=True)
class Completion:
    """A whole answer: all events put together, and what router and node say of it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    route: pb.RouteReport = field(default_factory=pb.RouteReport)
    summary: pb.Summary = field(default_factory=pb.Summary)
    ttft: float | None = None  # seconds from the call to the first token, seen from here

    @property
    def usage(self) -> pb.Usage:
        return self.summary.usage


class Generation:
    """A running request: iterate it for events as they come, or take the whole `result()`.

    Leaving it before its end, by `cancel` or as a context manager, ends the node's work.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._frames = iter(call)  # one: each new one of a DirectCall would be a request more
        self._failure: RequestError | None = None
        self._started = time.perf_counter()
        self._done = Completion()

    def __iter__(self) -> Iterator[Event]:
        """Raises RequestError when the request fails, at whatever point, and from then on."""
        if self._failure is not None:
            raise self._failure
        try:
            for frame in self._frames:
                yield from self._read(frame)
        except grpc.RpcError as error:
            self._failure = from_rpc_error(error)
            raise self._failure from None
        except RequestError as error:
            self._failure = error
            raise

    def result(self) -> Completion:
        """The whole answer, what has been iterated included. Raises RequestError."""
        for _ in self:
            pass
        return self._done

    @property
    def so_far(self) -> Completion:
        """What has been iterated."""
        return self._done

    def cancel(self) -> None:
        """Idempotent; does nothing once it has ended."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _read(self, frame: pb.GenerateResponse) -> Iterator[Event]:
        done = self._done
        if frame.HasField("route"):
            done.route = frame.route
        if frame.HasField("summary"):
            done.summary = frame.summary
        for delta in frame.deltas:
            if done.ttft is None:
                done.ttft = time.perf_counter() - self._started
            event = Event(delta.text, unpack_tokens(delta.token_ids), _finish(delta))
            done.text += event.text
            done.token_ids += event.token_ids
            done.finish_reason = event.finish_reason or done.finish_reason
            yield event


def _finish(delta: pb.SampleDelta) -> str | None:
    if not delta.finish_reason:
        return None
    return pb.FinishReason.Name(delta.finish_reason).removeprefix("FINISH_REASON_").lower()

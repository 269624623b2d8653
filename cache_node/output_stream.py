"""The answers that are on their way to clients: one stream a request, filled once a step, read by
its RPC.
"""

import asyncio
from collections.abc import AsyncIterator

from cache_node.sequence import FinishReason, Sequence
from cache_node.step_output import Delta
from kvmesh.errors import Code, RequestError
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb

FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
}


class OutputStream:
    """News of one request, merged while the reader is away: what waits is bounded by max_tokens,
    whoever reads.

    Lives on the event loop.
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._last: Delta | None = None
        self._failure: RequestError | None = None
        self._news = asyncio.Event()

    def push(self, delta: Delta) -> None:
        if delta.token is not None:
            self._tokens.append(delta.token)
        self._text.append(delta.text)
        if delta.ended is not None:
            self._last = delta
        if delta.error is not None:
            self._failure = RequestError(Code.INTERNAL, delta.error)
        self._news.set()

    def fail(self, failure: RequestError) -> None:
        """Ends the stream with an error, whatever has been pushed."""
        self._failure = failure
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[pb.SampleDelta]:
        """Deltas until the end, of which `ended` tells. Raises what the stream was failed with."""
        while self._last is None:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            yield self._take()

    @property
    def ended(self) -> Sequence | None:
        """The sequence, once it has ended."""
        return self._last.ended if self._last is not None else None

    def _take(self) -> pb.SampleDelta:
        delta = pb.SampleDelta(token_ids=pack_tokens(self._tokens), text="".join(self._text))
        self._tokens, self._text = [], []
        if self._last is not None and self._last.ended is not None:
            reason = self._last.ended.finish_reason
            assert reason is not None
            delta.finish_reason = FINISH_REASONS[reason]
            delta.stop_reason = self._last.stop_reason
        return delta

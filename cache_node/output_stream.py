"""The answers that are on their way to clients: one stream a request, filled once a step, read by
its RPC.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from cache_node.sampling import TokenLogprobs
from cache_node.sequence import FinishReason, Request
from cache_node.step_output import Delta, Ended
from kvmesh.errors import Code, RequestError
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb

FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.ABORT: pb.FINISH_REASON_ABORT,
}


class _Pending:
    """What one sample's reader has not taken yet."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text: list[str] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason = ""

    def add(self, delta: Delta) -> None:
        self.tokens += delta.tokens
        self.text.append(delta.text)
        self.logprobs += delta.logprobs
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason

    def to_proto(self, sample: int) -> pb.SampleDelta:
        delta = pb.SampleDelta(
            index=sample,
            token_ids=pack_tokens(self.tokens),
            text="".join(self.text),
            stop_reason=self.stop_reason,
            logprobs=logprobs_to_proto(self.logprobs),
        )
        if self.finish_reason is not None:
            delta.finish_reason = FINISH_REASONS[self.finish_reason]
        return delta


class OutputStream:
    """News of one request, merged while the reader is away: what waits is bounded by n ×
    max_tokens, whoever reads.

    Lives on the event loop.
    """

    def __init__(self) -> None:
        self.request: Request | None = None  # once it has ended
        self._pending: dict[int, _Pending] = {}
        self._failure: RequestError | None = None
        self._news = asyncio.Event()

    def push(self, delta: Delta) -> None:
        self._pending.setdefault(delta.sample, _Pending()).add(delta)
        self._news.set()

    def end(self, ended: Ended) -> None:
        if ended.error is not None:
            self.fail(RequestError(Code.INTERNAL, ended.error))
        self.request = ended.request
        self._news.set()

    def fail(self, failure: RequestError) -> None:
        """Ends the stream with an error, whatever has been pushed."""
        self._failure = failure
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[pb.GenerateResponse]:
        """Frames until the end, of which `request` then tells. Raises what it was failed with."""
        ended = False
        while not ended:
            await self._news.wait()
            self._news.clear()
            if self._failure is not None:
                raise self._failure
            ended = self.request is not None
            yield self._take()

    def _take(self) -> pb.GenerateResponse:
        pending, self._pending = self._pending, {}
        return pb.GenerateResponse(
            deltas=[waiting.to_proto(sample) for sample, waiting in sorted(pending.items())]
        )


def logprobs_to_proto(entries: Sequence[TokenLogprobs]) -> list[pb.TokenLogprobs]:
    return [
        pb.TokenLogprobs(
            logprob=entry.logprob,
            rank=entry.rank,
            top=[pb.TokenLogprob(token_id=token, logprob=value) for token, value in entry.top],
        )
        for entry in entries
    ]

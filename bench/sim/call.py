"""What the router calls of a simulated node, in the place of gRPC."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc
from grpc import aio

from bench.sim.node import SimNode
from bench.sim.prompts import Prompt
from bench.trivial_executor import TOKEN
from cache_node.sampling import SamplingParams
from cache_node.sequence import Progress, Request
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.v1 import cache_node_pb2
from kvmesh.v1 import generate_pb2 as pb

Code = grpc.StatusCode


class SimChannel:
    """To one node. Knows one method: Generate. `prompt_of` has the prompt of a request id."""

    def __init__(self, node: SimNode, prompt_of: Callable[[str], Prompt]) -> None:
        self._node = node
        self._prompt_of = prompt_of

    def unary_stream(self, *_: Any, **__: Any) -> Callable[..., "SimCall"]:
        return self._generate

    def _generate(self, message: cache_node_pb2.NodeGenerateRequest, **_: Any) -> "SimCall":
        return SimCall(self._node, message, self._prompt_of(message.request_id))


class SimCall:
    """A stream of frames. Tokens come together: in a frame when the first is there, in one when the
    last is, and in one before the node is lost.
    """

    def __init__(
        self, node: SimNode, message: cache_node_pb2.NodeGenerateRequest, prompt: Prompt
    ) -> None:
        self._node = node
        self._news: deque[bytes | aio.AioRpcError | Any] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._over = False
        self._told = 0  # tokens of the output so far
        self.request = _request(message, prompt)
        self._resumed = self.request.leader.num_output
        if message.epoch == node.epoch:
            node.submit(self, message.dispatch_sequence)
        else:
            self.refuse(f"this node lives in epoch {node.epoch}")

    async def initial_metadata(self) -> aio.Metadata:
        return aio.Metadata()

    async def trailing_metadata(self) -> aio.Metadata:
        return aio.Metadata()

    async def read(self) -> Any:
        while not self._news:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        news = self._news.popleft()
        if isinstance(news, aio.AioRpcError):
            raise news
        return news

    def cancel(self) -> bool:
        """The client, or the router, wants no more."""
        if self._over:
            return False
        self._over = True
        self._node.abort(self.request)
        if self._waiting is not None:
            self._waiting.cancel()
        return True

    def begin(self) -> None:
        if not self._told:
            self._tell(pb.GenerateResponse(deltas=self._new_tokens()))

    def end(self) -> None:
        last = pb.GenerateResponse(deltas=self._new_tokens(), summary=self._summary())
        self._over = True
        self._tell(last, aio.EOF)
        # They hold each other: what has ended is freed at once, without a collector's help.
        self.request.sequences.clear()
        del self.request.leader

    def refuse(self, reason: str) -> None:
        self._over = True
        self._tell(_error(Code.FAILED_PRECONDITION, reason))

    def lose(self) -> None:
        self._over = True
        if deltas := self._new_tokens():
            self._tell(pb.GenerateResponse(deltas=deltas))
        self._tell(_error(Code.UNAVAILABLE, "the node is gone"))

    def _new_tokens(self) -> list[pb.SampleDelta]:
        output = self.request.leader.num_output - self._resumed
        count, self._told = output - self._told, output
        return [pb.SampleDelta(token_ids=pack_tokens([TOKEN] * count))] if count else []

    def _summary(self) -> pb.Summary:
        request = self.request
        usage = pb.Usage(
            prompt_tokens=len(request.prompt),
            completion_tokens=request.leader.num_output,
            cached=pb.CachedTokens(gpu=request.cached_tokens),
        )
        return pb.Summary(
            node=self._node.name,
            epoch=self._node.epoch,
            usage=usage,
            preemptions=request.preemptions,
        )

    def _tell(self, *news: Any) -> None:
        self._news += [
            each.SerializeToString() if isinstance(each, pb.GenerateResponse) else each
            for each in news
        ]
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _request(message: cache_node_pb2.NodeGenerateRequest, prompt: Prompt) -> Request:
    return Request(
        id=f"{message.request_id}/{message.attempt}",
        prompt=prompt.tokens,
        params=SamplingParams(
            max_tokens=message.sampling.max_tokens, temperature=0.0, ignore_eos=True
        ),
        eos_token_ids=frozenset(),
        keys=prompt.keys,
        arrival=asyncio.get_running_loop().time(),
        resumed=_progress(message.resume),
    )


def _progress(resume: Sequence[cache_node_pb2.Resume]) -> list[Progress]:
    return [Progress(unpack_tokens(each.token_ids), each.finished) for each in resume]


def _error(code: grpc.StatusCode, details: str) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(), details=details)

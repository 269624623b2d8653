"""Requests of all kinds with the answers that an undisturbed fleet gives them."""

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import cast

import grpc

from bench.requests import random_prompt
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2_grpc

DEADLINE = 120.0  # seconds


@dataclass(slots=True)
class Sample:
    """As a client puts it together."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    ends: list[int] = field(default_factory=list)  # finish reasons: one, if all is well


@dataclass(slots=True)
class Reply:
    samples: dict[int, Sample] = field(default_factory=dict)
    completion_tokens: int = 0  # says the summary
    nodes: tuple[str, str] = ("", "")  # where it began, and where it ended

    def take(self, frame: pb.GenerateResponse) -> None:
        for delta in frame.deltas:
            sample = self.samples.setdefault(delta.index, Sample())
            sample.tokens += unpack_tokens(delta.token_ids)
            sample.text += delta.text
            sample.ends += [delta.finish_reason] if delta.finish_reason else []
        if frame.HasField("route"):
            self.nodes = (frame.route.node, "")
        if frame.HasField("summary"):
            self.completion_tokens = frame.summary.usage.completion_tokens
            self.nodes = (self.nodes[0], frame.summary.node)

    def problem(self, known: "Reply") -> str | None:
        """How it differs from what was to be expected; None if it does not."""
        for index, its in known.samples.items():
            ours = self.samples.get(index, Sample())
            if ours.tokens != its.tokens:
                return f"sample {index}: {_difference(ours.tokens, its.tokens)}"
            if (ours.text, ours.ends) != (its.text, its.ends):
                return f"sample {index}: another text or end: {ours.ends}, {ours.text!r}"
        if self.completion_tokens != known.completion_tokens:
            return f"usage is {self.completion_tokens}, was {known.completion_tokens}"
        return None


def _difference(ours: list[int], its: list[int]) -> str:
    place = next(
        (i for i, pair in enumerate(zip(ours, its, strict=False)) if len(set(pair)) > 1), -1
    )
    if place < 0:
        return f"{len(ours)} tokens instead of {len(its)}"
    return f"{len(ours)} of {len(its)} tokens, another one at {place}"


def draw_requests(draw: random.Random, count: int) -> list[pb.GenerateRequest]:
    """Greedy and sampled, one sample and several, with stop strings and penalties, long and short;
    some share a prefix, some keep out of the cache.
    """
    prefixes = [random_prompt(draw, 48) for _ in range(3)]
    return [_request(draw, draw.choice(prefixes), place) for place in range(count)]


def _request(draw: random.Random, prefix: list[int], place: int) -> pb.GenerateRequest:
    # Few tokens to draw from: of 49,152 about equally likely ones another order of a sum may take
    # the next.
    sampling = pb.SamplingParams(
        temperature=(0.0, 1.0, 0.8)[place % 3],
        top_k=8,
        seed=draw.getrandbits(32),
        n=3 if place % 4 == 3 else 1,
        max_tokens=draw.randint(40, 280),
        ignore_eos=True,
        frequency_penalty=0.5 if place % 5 == 4 else 0.0,
        stop=["the"] if place % 3 == 1 else [],
    )
    return pb.GenerateRequest(
        token_ids=pack_tokens(prefix[: draw.randint(0, 48)] + random_prompt(draw, 30)),
        sampling=sampling,
        cache=pb.CACHE_MODE_OFF if place % 7 == 6 else pb.CACHE_MODE_READ_WRITE,
    )


class Asker:
    """Sends requests to a router and puts answers together."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = inference_pb2_grpc.InferenceStub(channel)

    async def frames(
        self, request: pb.GenerateRequest
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """As they come; who leaves early ends the request. Raises AioRpcError."""
        call = self._stub.Generate(request, timeout=DEADLINE)
        try:
            while (frame := await call.read()) is not grpc.aio.EOF:
                yield cast(pb.GenerateResponse, frame)
        finally:
            call.cancel()

    async def ask(
        self, request: pb.GenerateRequest, leave_after: int | None = None
    ) -> Reply | None:
        """The whole answer; None for a client who leaves after so many frames."""
        reply = Reply()
        async with aclosing(self.frames(request)) as frames:
            count = 0
            async for frame in frames:
                reply.take(frame)
                count += 1
                if count == leave_after:
                    return None
        return reply

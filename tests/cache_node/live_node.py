"""Drives a live node over gRPC."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import grpc

from cache_node.node import Node
from kvmesh.packing import pack_tokens, unpack_tokens
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, generate_pb2


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: int = 0
    stop_reason: str = ""
    summary: generate_pb2.Summary = field(default_factory=generate_pb2.Summary)

    @property
    def cached_tokens(self) -> int:
        return self.summary.usage.cached.gpu


class LiveNode:
    def __init__(self, node: Node, port: int, channel: grpc.aio.Channel) -> None:
        self.node, self.port = node, port
        self.stub = cache_node_pb2_grpc.CacheNodeStub(channel)
        self.channel = channel
        self._ids = count()

    def call(self, tokens: list[int], *, timeout: float | None = None, **fields):
        """Starts a request; sampling fields and fields of the dispatch may be given by name."""
        known = pb.NodeGenerateRequest.DESCRIPTOR.fields_by_name
        dispatch = {name: fields.pop(name) for name in list(fields) if name in known}
        sampling = generate_pb2.SamplingParams(**{"temperature": 0.0, "max_tokens": 8} | fields)
        request = pb.NodeGenerateRequest(
            **{"request_id": f"r{next(self._ids)}", "attempt": 1} | dispatch,
            token_ids=pack_tokens(tokens),
            sampling=sampling,
        )
        return self.stub.Generate(request, timeout=timeout)

    async def generate(self, tokens: list[int], **fields) -> Answer:
        return await collect(self.call(tokens, **fields))

    async def settle(self) -> None:
        """Everything is released, and every invariant holds."""
        await until(lambda: self.node.service.num_open == 0)
        await until_async(self._released)

    async def _released(self) -> bool:
        report = await self.stub.CheckIntegrity(pb.CheckIntegrityRequest())
        assert list(report.violations) == []
        return report.requests == 0 and report.held_blocks == 0


async def collect(call) -> Answer:
    answer = Answer()
    while (frame := await call.read()) is not grpc.aio.EOF:
        for delta in frame.deltas:
            answer.tokens += unpack_tokens(delta.token_ids)
            answer.text += delta.text
            answer.finish = delta.finish_reason
            answer.stop_reason = delta.stop_reason
        answer.summary.MergeFrom(frame.summary)
    return answer


async def until(condition: Callable[[], bool], timeout: float = 5.0) -> None:
    """Polls `condition`; fails when it does not hold within `timeout` seconds."""

    async def check() -> bool:
        return condition()

    await until_async(check, timeout)


async def until_async(condition, timeout: float = 5.0) -> None:
    deadline = time.monotonic() + timeout
    while not await condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.01)

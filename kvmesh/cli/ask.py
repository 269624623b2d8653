"""One request to a router, streamed, and what it says of itself."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import grpc

from kvmesh.errors import Code, from_rpc_error
from kvmesh.v1 import generate_pb2, inference_pb2_grpc


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request. Times are seconds, seen from the client."""

    text: str
    node: str
    reason: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft: float
    seconds: float
    finish_reason: str

    @property
    def tokens_per_second(self) -> float | None:
        """Decode speed: tokens after the first, by the time after the first."""
        if self.completion_tokens < 2 or self.seconds <= self.ttft:
            return None
        return (self.completion_tokens - 1) / (self.seconds - self.ttft)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "tokens_per_second": self.tokens_per_second}


def ask(
    channel: grpc.Channel,
    request: generate_pb2.GenerateRequest,
    on_text: Callable[[str], None] = lambda _: None,
    timeout: float | None = None,
) -> Answer:
    """Sends `request`, hands on text as it comes, and returns the whole. Raises grpc.RpcError."""
    texts: list[str] = []
    first = None
    route, summary = generate_pb2.RouteReport(), generate_pb2.Summary()
    finish = generate_pb2.FINISH_REASON_UNSPECIFIED
    started = time.perf_counter()
    for frame in inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=timeout):
        route.MergeFrom(frame.route)
        summary.MergeFrom(frame.summary)
        for delta in frame.deltas:
            first = first or time.perf_counter()
            finish = delta.finish_reason or finish
            texts.append(delta.text)
            on_text(delta.text)
    ended = time.perf_counter()
    cached = summary.usage.cached
    return Answer(
        text="".join(texts),
        node=summary.node,
        reason=route.reason,
        prompt_tokens=summary.usage.prompt_tokens,
        completion_tokens=summary.usage.completion_tokens,
        cached_tokens=cached.gpu + cached.cpu + cached.remote,
        ttft=(first or ended) - started,
        seconds=ended - started,
        finish_reason=generate_pb2.FinishReason.Name(finish).removeprefix("FINISH_REASON_").lower(),
    )


def explain(error: grpc.RpcError, target: str) -> str:
    """A failed request in words for the person who sent it to `target`."""
    reason = from_rpc_error(error)
    if reason.code is Code.UNAVAILABLE and "connect" in reason.message:
        return f"no router answers at {target}; `kvmesh serve` starts one"
    if reason.retry_after is not None:
        return f"{reason.message}; try again in {reason.retry_after:g} s"
    return f"{reason.message} ({reason.code.name})"

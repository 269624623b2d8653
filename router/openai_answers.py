"""OpenAI's answers from the frames of ours: in one piece, or as the chunks of a stream."""

import json
import time
from dataclasses import dataclass, field
from typing import Any

from kvmesh.errors import Code, RequestError
from kvmesh.v1 import generate_pb2 as pb

_FINISH = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
}

_ERROR_TYPES = {
    Code.RESOURCE_EXHAUSTED: "rate_limit_error",
    Code.UNAVAILABLE: "service_unavailable_error",
    Code.UNIMPLEMENTED: "not_implemented_error",
    Code.DEADLINE_EXCEEDED: "timeout_error",
}

DONE = b"data: [DONE]\n\n"


def error_body(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object; `param` is the field."""
    client = 400 <= error.http_code < 500 and error.code not in _ERROR_TYPES
    kind = "invalid_request_error" if client else _ERROR_TYPES.get(error.code, "server_error")
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.field,
            "code": error.code.name.lower(),
        }
    }


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


@dataclass(slots=True)
class Transcript:
    """What a stream of frames has said so far, of the one sample that is served."""

    report: pb.RouteReport
    finish: str | None = None
    stop_reason: str | None = None
    summary: pb.Summary = field(default_factory=pb.Summary)

    def read(self, raw: bytes) -> str:
        """Takes in a frame and returns its text."""
        frame = pb.GenerateResponse.FromString(raw)
        if frame.HasField("summary"):
            self.summary = frame.summary
        for delta in frame.deltas:
            if delta.finish_reason:
                self.finish = _FINISH.get(delta.finish_reason, "stop")
                self.stop_reason = delta.stop_reason or None
        return "".join(delta.text for delta in frame.deltas)

    def usage(self) -> dict[str, Any]:
        usage = self.summary.usage
        prompt = usage.prompt_tokens or self.report.prompt_tokens
        cached = usage.cached.gpu + usage.cached.cpu + usage.cached.remote
        return {
            "prompt_tokens": prompt,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": prompt + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def kvmesh(self, ttft_us: int) -> dict[str, Any]:
        """What the fleet did for this request; not part of OpenAI's answer."""
        cached = self.summary.usage.cached
        return {
            "request_id": self.report.request_id,
            "node": self.report.node,
            "reason": self.report.reason,
            "attempt": self.report.attempt,
            "seed": self.report.seed,
            "predicted_cached_tokens": self.report.predicted_cached_tokens,
            "cached_tokens": {"gpu": cached.gpu, "cpu": cached.cpu, "remote": cached.remote},
            "router_ms": self.report.router_us / 1e3,
            "tokenize_ms": self.report.tokenize_us / 1e3,
            "queue_ms": self.summary.queue_us / 1e3,
            "prefill_ms": self.summary.prefill_us / 1e3,
            "ttft_ms": ttft_us / 1e3,
            "preemptions": self.summary.preemptions,
        }


class AnswerForm:
    """The shape of one endpoint's answers. Completions and chat differ in where the text is."""

    def __init__(self, *, chat: bool, model: str, request_id: str) -> None:
        self._chat = chat
        self._base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }

    def whole(self, text: str, transcript: Transcript, ttft_us: int) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        choice |= self._ending(transcript)
        return {
            **self._base,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": [choice],
            "usage": transcript.usage(),
            "kvmesh": transcript.kvmesh(ttft_us),
        }

    def opening(self) -> list[dict[str, Any]]:
        """A chat stream begins with the role."""
        delta = {"delta": {"role": "assistant", "content": ""}}
        return [self._chunk(delta)] if self._chat else []

    def piece(self, text: str) -> dict[str, Any]:
        return self._chunk({"delta": {"content": text}} if self._chat else {"text": text})

    def closing(
        self, transcript: Transcript, ttft_us: int, *, with_usage: bool
    ) -> list[dict[str, Any]]:
        """The chunk with the finish reason and, if asked for, the one with the usage; the last has
        ours.
        """
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        chunks = [self._chunk(empty | self._ending(transcript))]
        if with_usage:
            usage = {**self._chunk({}), "choices": [], "usage": transcript.usage()}
            chunks.append(usage)
        chunks[-1]["kvmesh"] = transcript.kvmesh(ttft_us)
        return chunks

    def _chunk(self, content: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._base,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "choices": [{"index": 0, "finish_reason": None, "logprobs": None, **content}],
        }

    def _ending(self, transcript: Transcript) -> dict[str, Any]:
        return {
            "finish_reason": transcript.finish,
            "stop_reason": transcript.stop_reason,
            "logprobs": None,
        }

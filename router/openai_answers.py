"""OpenAI's bodies: errors, answers in one piece, and the chunks of a stream."""

import json
import time
from typing import Any

from kvmesh.errors import Code, RequestError
from router.openai_logprobs import LogprobForm
from router.openai_transcript import Piece

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


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encoded(value: dict[str, Any]) -> bytes:
    """Compact JSON. Raises ValueError for a number that JSON does not have."""
    return _ENCODER.encode(value).encode()


def event(value: dict[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


class AnswerForm:
    """The shape of one endpoint's answers. Completions and chat differ in where the text is."""

    def __init__(self, chat: bool, model: str, request_id: str) -> None:
        self._chat = chat
        self._base = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-{request_id}",
            "created": int(time.time()),
            "model": model,
        }
        self._chunk_base = {
            **self._base,
            "object": "chat.completion.chunk" if chat else "text_completion",
        }

    def whole(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._base,
            "object": "chat.completion" if self._chat else "text_completion",
            "choices": choices,
            "usage": usage,
        }

    def choice(self, pieces: list[Piece]) -> dict[str, Any]:
        """One choice from all that was said of it, in order."""
        text, last = "".join(piece.text for piece in pieces), pieces[-1]
        choice: dict[str, Any] = {"index": last.index}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text, "refusal": None}
        else:
            choice["text"] = text
        parts = [piece.logprobs for piece in pieces if piece.logprobs]
        choice["logprobs"] = LogprobForm.merged(parts)
        if any(piece.token_ids is not None for piece in pieces):
            choice["token_ids"] = [id_ for piece in pieces for id_ in piece.token_ids or ()]
        return {**choice, "finish_reason": last.finish, "stop_reason": last.stop_reason}

    def opening(self, index: int) -> dict[str, Any]:
        """A choice of a chat stream begins with the role."""
        return self._chunk(index, {"delta": {"role": "assistant", "content": ""}})

    def piece(self, piece: Piece) -> dict[str, Any]:
        content: dict[str, Any] = (
            {"delta": {"content": piece.text}} if self._chat else {"text": piece.text}
        )
        if piece.logprobs is not None:
            content["logprobs"] = piece.logprobs
        if piece.token_ids is not None:
            content["token_ids"] = piece.token_ids
        return self._chunk(piece.index, content)

    def ending(self, piece: Piece) -> dict[str, Any]:
        """A choice ends with a chunk that has the reason and no text."""
        empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
        ending = {"finish_reason": piece.finish, "stop_reason": piece.stop_reason}
        return self._chunk(piece.index, empty | ending)

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last chunk of a stream, when asked for."""
        return {**self._chunk_base, "choices": [], "usage": usage}

    def _chunk(self, index: int, content: dict[str, Any]) -> dict[str, Any]:
        return {
            **self._chunk_base,
            "choices": [{"index": index, "finish_reason": None, "logprobs": None, **content}],
        }

"""Requests from Python values."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kvmesh.errors import invalid
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb

Message = Mapping[str, Any]
"""role and content, and whatever else the model's chat template knows."""


def make_request(
    prompt: str | None = None,
    *,
    messages: Sequence[Message] | None = None,
    token_ids: Sequence[int] | None = None,
    **fields: Any,
) -> pb.GenerateRequest:
    """A request from exactly one form of prompt and any fields of GenerateRequest (model, priority,
    explain …) and of SamplingParams (max_tokens, temperature, seed, stop …).

    Raises RequestError for a prompt given twice, not at all, or of bytes that are no text, and
    TypeError for an unknown field.
    """
    if sum(each is not None for each in (prompt, messages, token_ids)) != 1:
        raise invalid("prompt", "give exactly one of prompt, messages, token_ids")
    names = pb.GenerateRequest.DESCRIPTOR.fields_by_name
    own = {name: value for name, value in fields.items() if name in names}
    rest = {name: value for name, value in fields.items() if name not in names}
    request = pb.GenerateRequest(**own, sampling=_sampling(rest))
    try:
        if messages is not None:
            request.chat.CopyFrom(chat_of(messages))
        elif token_ids is not None:
            request.token_ids = pack_tokens(token_ids)
        else:
            request.text = prompt or ""
    except UnicodeEncodeError as error:  # surrogates, which bytes of no text have become
        raise invalid("prompt", f"must be text in UTF-8, {error.reason}") from error
    return request


def _sampling(fields: dict[str, Any]) -> pb.SamplingParams:
    if isinstance(fields.get("stop"), str):
        fields["stop"] = [fields["stop"]]
    unknown = fields.keys() - set(pb.SamplingParams.DESCRIPTOR.fields_by_name)
    if unknown:
        raise TypeError(f"no such field of a request: {', '.join(sorted(unknown))}")
    try:
        return pb.SamplingParams(**fields)
    except (TypeError, ValueError) as error:  # -1 for an unsigned field, a text for a number
        raise invalid("sampling", str(error)) from error


def chat_of(messages: Sequence[Message]) -> pb.Chat:
    return pb.Chat(messages=[_message(each) for each in messages])


def _message(message: Message) -> pb.ChatMessage:
    extra = {key: value for key, value in message.items() if key not in ("role", "content")}
    return pb.ChatMessage(
        role=message.get("role", ""),
        content=message.get("content") or "",
        extra_json=json.dumps(extra) if extra else "",
    )

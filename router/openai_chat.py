"""OpenAI's chat requests: messages and tools for the model's template."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kvmesh.errors import invalid, unimplemented
from kvmesh.v1 import generate_pb2 as pb
from router.openai_fields import (
    MAX_PARTS,
    Count,
    Objects,
    Text,
    Tools,
    as_json,
    at_most,
    few_messages,
)
from router.openai_requests import AnswerOptions, Body, SamplingBody


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Text
    text: Text = ""

    @field_validator("type")
    @classmethod
    def _only_text(cls, value: str) -> str:
        if value != "text":
            raise ValueError(f"only text parts are served, not {value[:64]}")
        return value


Parts = Annotated[list[TextPart], Field(fail_fast=True), at_most(MAX_PARTS, "parts")]


class Message(BaseModel):
    """Other keys (name, tool_calls, tool_call_id) go to the template as they are."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Text
    content: Text | Parts | None = None

    def to_message(self) -> pb.ChatMessage:
        extra = {key: value for key, value in (self.model_extra or {}).items() if value is not None}
        if "tool_calls" in extra:
            extra["tool_calls"] = _with_objects(extra["tool_calls"])
        return pb.ChatMessage(role=self.role, content=self._text(), extra_json=as_json(extra))

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


def _with_objects(calls: Any) -> Any:
    """OpenAI sends a call's arguments as JSON in a text; templates expect the object, as they get
    it from transformers and vLLM.
    """
    if not isinstance(calls, list):
        return calls
    return [
        {**call, **_parsed_function(call)} if isinstance(call, dict) else call for call in calls
    ]


def _parsed_function(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return {}
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return {}  # the model wrote it, and may have written no JSON
    return {"function": {**function, "arguments": arguments}}


class Conversation(Body):
    """What the template is given."""

    messages: Annotated[list[Message], Field(fail_fast=True), few_messages]
    tools: Tools | None = None
    tool_choice: Literal["none", "auto"] | Any = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Objects | None = None
    reasoning_effort: Text | None = None

    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Body.unserved,
        "add_special_tokens": (False,),
        "audio": (),
        "chat_template": (),
        "continue_final_message": (False,),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "modalities": (["text"],),
        "web_search_options": (),
    }

    def to_chat(self) -> pb.Chat:
        """Raises INVALID_ARGUMENT and UNIMPLEMENTED by field."""
        if not self.messages:
            raise invalid("messages", "must not be empty, send at least one message")
        if self.tool_choice not in (None, "none", "auto"):
            raise unimplemented("tool_choice", "only none and auto are served by this version")
        for place, tool in enumerate(self.tools or ()):
            _check_tool(f"tools[{place}]", tool)
        # To leave the tools out is the one way to keep the model from calling any.
        tools = None if self.tool_choice == "none" else self.tools
        return pb.Chat(
            messages=[message.to_message() for message in self.messages],
            add_generation_prompt=self.add_generation_prompt,
            tools_json=as_json(tools),
            template_args_json=as_json(self._variables()),
        )

    def _variables(self) -> dict[str, Any]:
        own = {"documents": self.documents, "reasoning_effort": self.reasoning_effort}
        given = {name: value for name, value in own.items() if value is not None}
        return {**given, **(self.chat_template_kwargs or {})}


def _check_tool(path: str, tool: dict[str, Any]) -> None:
    if tool.get("type", "function") != "function":
        raise unimplemented(f"{path}.type", "only function is served by this version")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{path}.function", "must be an object with a name")
    if not (isinstance(function.get("name"), str) and function["name"]):
        raise invalid(f"{path}.function.name", "must be a text that is not empty")


class ChatBody(SamplingBody, Conversation):
    """POST /v1/chat/completions."""

    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **SamplingBody.unserved,
        **Conversation.unserved,
    }

    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    parallel_tool_calls: bool | None = None

    @property
    def names(self) -> dict[str, str]:
        newer = self.max_completion_tokens is not None
        names = {"max_tokens": "max_completion_tokens"} if newer else {}
        return {**names, "logprobs": "top_logprobs"}

    @property
    def options(self) -> AnswerOptions:
        return self._options(logprobs=bool(self.logprobs))

    def to_requests(self, request_id: str) -> list[pb.GenerateRequest]:
        """One. Raises INVALID_ARGUMENT and UNIMPLEMENTED by field."""
        if self.parallel_tool_calls is False and self.tools and self.tool_choice != "none":
            raise unimplemented("parallel_tool_calls", "only true is served by this version")
        limit = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        request = self._request(request_id, limit)
        if self.top_logprobs and not self.logprobs:
            raise invalid("top_logprobs", "must not be set unless logprobs is true, set it")
        if self.logprobs:
            request.sampling.logprobs = self.top_logprobs or 0
        request.chat.CopyFrom(self.to_chat())
        return [request]

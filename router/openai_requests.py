"""OpenAI's request bodies, with vLLM's extras, as generation requests of ours.

Fields that we do not know are ignored and null means the default, as OpenAI's clients expect; types
are strict.
"""

import json
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
)

from kvmesh.errors import invalid, unimplemented
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.validation import MAX_BIASES, MAX_SAMPLES

UINT32 = 2**32 - 1
COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions."""

Count = Annotated[int, Field(ge=0, le=UINT32)]
Number = Annotated[float, Field(allow_inf_nan=False)]


def _unicode(text: str) -> str:
    """JSON can smuggle in half a surrogate pair, which is no text and no protobuf string."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"must be valid Unicode, is not at character {error.start}") from None
    return text


def _few(value: Any) -> Any:
    """Asked before the entries are looked at."""
    if isinstance(value, dict) and len(value) > MAX_BIASES:
        raise ValueError(f"must have at most {MAX_BIASES} entries, has {len(value)}")
    return value


Text = Annotated[str, AfterValidator(_unicode)]
TokenId = Annotated[int, Field(ge=0, le=UINT32)]
Biases = Annotated[dict[str, Number], BeforeValidator(_few)]

# One wrong element is named, and a body of a few MB has a million: to describe them all takes a
# minute, and two gigabytes.
Texts = Annotated[list[Text], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Prompts = Annotated[list[TokenIds], Field(fail_fast=True, max_length=MAX_SAMPLES)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]

# Same name and meaning in both; None leaves the default to the router.
_PLAIN = (
    "temperature",
    "top_p",
    "min_p",
    "min_tokens",
    "n",
    "best_of",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "prompt_logprobs",
    "skip_special_tokens",
)


def _formatted(request: pb.GenerateRequest) -> pb.GenerateRequest:
    """`request`, unless the answer over HTTP has no place for what it asks: UNIMPLEMENTED then."""
    params = request.sampling
    for field in ("n", "best_of"):
        if getattr(params, field) > 1:
            raise unimplemented(field, "only 1 is served over HTTP by this version")
    for field in ("logprobs", "prompt_logprobs"):
        if params.HasField(field):  # type: ignore[arg-type]  # the stub wants a literal
            raise unimplemented(field, "not served over HTTP by this version, leave it out")
    if params.HasField("max_tokens") and params.max_tokens == 0:
        raise unimplemented("max_tokens", "0 is not served over HTTP by this version, send 1")
    return request


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class _Shared(BaseModel):
    model_config = ConfigDict(strict=True)

    model: Text | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = None
    min_p: Number | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Text | Texts | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    n: Count | None = None
    best_of: Count | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    prompt_logprobs: Count | None = None
    logit_bias: Biases | None = None
    response_format: dict[str, Any] | None = None

    @property
    def names(self) -> dict[str, str]:
        """What fields of ours are called here, where the client had a choice."""
        return {}

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """In a stream; an answer in one piece always has it."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def _request(self, request_id: str, max_tokens: int | None) -> pb.GenerateRequest:
        if self.response_format and self.response_format.get("type", "text") != "text":
            raise unimplemented("response_format", "only text is served by this version")
        if self.logit_bias:
            raise unimplemented("logit_bias", "not served by this version, leave it out")
        request = pb.GenerateRequest(
            model=self.model or "", request_id=request_id, priority=self.priority or 0
        )
        self._set_sampling(request.sampling)
        if max_tokens is not None:
            request.sampling.max_tokens = max_tokens
        return request

    def _set_sampling(self, params: pb.SamplingParams) -> None:
        for field in _PLAIN:
            if (value := getattr(self, field)) is not None:
                setattr(params, field, value)
        if self.top_k is not None:
            params.top_k = max(self.top_k, 0)  # vLLM's -1 keeps all, as 0 does
        if self.seed is not None:
            params.seed = self.seed % 2**64
        params.ignore_eos = bool(self.ignore_eos)
        params.stop.extend([self.stop] if isinstance(self.stop, str) else self.stop or ())
        params.stop_token_ids.extend(self.stop_token_ids or ())


class CompletionBody(_Shared):
    """POST /v1/completions."""

    prompt: Text | Texts | TokenIds | Prompts | None = None
    logprobs: Count | None = None
    echo: bool | None = None
    suffix: Text | None = None

    def to_request(self, request_id: str) -> pb.GenerateRequest:
        """Raises INVALID_ARGUMENT and UNIMPLEMENTED by field."""
        if self.echo or self.suffix:
            field = "echo" if self.echo else "suffix"
            raise unimplemented(field, "not served by this version, leave it out")
        limit = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        request = self._request(request_id, limit)
        if self.logprobs is not None:
            request.sampling.logprobs = self.logprobs
        prompt = self._single_prompt()
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids = pack_tokens(prompt)
        return _formatted(request)

    def _single_prompt(self) -> str | list[int]:
        prompt = self.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise invalid("prompt", f"must be one prompt per request, has {len(prompt)}")
            prompt = prompt[0]
        if not prompt:
            raise invalid("prompt", "must not be empty, send a text or a list of token ids")
        return prompt  # type: ignore[return-value]  # lists of lists are unpacked above


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


class Message(BaseModel):
    """Other keys (name, tool_calls, tool_call_id) go to the template as they are."""

    model_config = ConfigDict(strict=True, extra="allow")

    role: Text
    content: Text | Annotated[list[TextPart], Field(fail_fast=True)] | None = None

    def to_message(self) -> pb.ChatMessage:
        extra = {key: value for key, value in (self.model_extra or {}).items() if value is not None}
        return pb.ChatMessage(
            role=self.role,
            content=self._text(),
            extra_json=json.dumps(extra) if extra else "",
        )

    def _text(self) -> str:
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""


class ChatBody(_Shared):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: Objects | None = None
    tool_choice: Literal["none", "auto"] | Any = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def names(self) -> dict[str, str]:
        newer = self.max_completion_tokens is not None
        return {"max_tokens": "max_completion_tokens"} if newer else {}

    def to_request(self, request_id: str) -> pb.GenerateRequest:
        """Raises INVALID_ARGUMENT and UNIMPLEMENTED by field."""
        if not self.messages:
            raise invalid("messages", "must not be empty, send at least one message")
        if self.tool_choice not in (None, "none", "auto"):
            raise unimplemented("tool_choice", "only none and auto are served by this version")
        limit = (
            self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        )
        request = self._request(request_id, limit)
        if self.logprobs or self.top_logprobs:
            request.sampling.logprobs = self.top_logprobs or 0
        request.chat.CopyFrom(self._chat())
        return _formatted(request)

    def _chat(self) -> pb.Chat:
        return pb.Chat(
            messages=[message.to_message() for message in self.messages],
            add_generation_prompt=self.add_generation_prompt,
            tools_json=json.dumps(self.tools) if self.tools else "",
            template_args_json=(
                json.dumps(self.chat_template_kwargs) if self.chat_template_kwargs else ""
            ),
        )

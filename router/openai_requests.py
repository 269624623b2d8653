"""What OpenAI's two generating requests share, with vLLM's extras, as sampling parameters of ours.

Fields that we do not know are ignored and null means the default, as OpenAI's clients expect; types
are strict. A field that we know and cannot serve is refused by its name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvmesh.errors import invalid, unimplemented
from kvmesh.v1 import generate_pb2 as pb
from router.openai_fields import (
    UINT32,
    Biases,
    Count,
    Number,
    Priority,
    Stops,
    StopTokenIds,
    Text,
)

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

# Fields that would change the answer, and the values that ask for nothing.
_UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "cache_salt": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logprob_token_ids": ([],),
    "prompt_embeds": (),
    "repetition_detection": (),
    "structured_outputs": (),
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
}


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """What an answer must hold beside the text. `n`: choices a prompt."""

    n: int = 1
    logprobs: bool = False
    prompt_logprobs: bool = False
    echo: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False  # spelled "token_id:5" in log-probabilities
    usage: bool = False  # in a stream; an answer in one piece always has it
    continuous_usage: bool = False
    skip_special_tokens: bool = True
    stop_token_ids: frozenset[int] = frozenset()


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(BaseModel):
    model_config = ConfigDict(strict=True)

    type: Text


class Body(BaseModel):
    """A request's fields. Every problem is an error that names the field."""

    model_config = ConfigDict(strict=True)
    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = _UNSERVED

    model: Text | None = None
    request_id: Text | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        """Raises UNIMPLEMENTED, which pydantic lets through."""
        for field, neutral in cls.unserved.items():
            given = value.get(field)
            if given is not None and given not in neutral:
                raise unimplemented(field, "not served by this version, leave it out")
        return value

    @property
    def names(self) -> dict[str, str]:
        """What fields of ours are called here, where the client had a choice."""
        return {}


class SamplingBody(Body):
    """Fields of completions and chat alike."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=UINT32)] | None = None
    min_p: Number | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stops | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    skip_special_tokens: bool | None = None
    priority: Priority | None = None
    n: Count | None = None
    best_of: Count | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    prompt_logprobs: Count | None = None
    logit_bias: Biases | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_cache_key: Text | None = None

    @property
    def streams(self) -> bool:
        return bool(self.stream)

    def _options(self, *, logprobs: bool, echo: bool = False) -> AnswerOptions:
        stream = self.stream_options or StreamOptions()
        return AnswerOptions(
            n=1 if self.n is None else self.n,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs is not None,
            echo=echo,
            token_ids=bool(self.return_token_ids),
            tokens_as_ids=bool(self.return_tokens_as_token_ids),
            usage=bool(stream.include_usage),
            continuous_usage=bool(stream.include_usage and stream.continuous_usage_stats),
            skip_special_tokens=self.skip_special_tokens is not False,
            stop_token_ids=frozenset(self.stop_token_ids or ()),
        )

    def _request(self, request_id: str, max_tokens: int | None) -> pb.GenerateRequest:
        """Without the prompt. Raises INVALID_ARGUMENT and UNIMPLEMENTED by field."""
        self._check()
        request = pb.GenerateRequest(
            model=self.model or "",
            request_id=request_id,
            priority=-(self.priority or 0),  # vLLM runs the lower first, we the larger
            session=self.prompt_cache_key or "",
        )
        self._set_sampling(request.sampling)
        if max_tokens is not None:
            request.sampling.max_tokens = max_tokens
        return request

    def _check(self) -> None:
        if self.stream_options and not self.stream:
            raise invalid("stream_options", "must not be set without stream, leave it out")
        if self.prompt_logprobs is not None and self.stream:
            raise invalid("prompt_logprobs", "must not be set with stream, leave one of them out")
        if self.response_format and self.response_format.type != "text":
            raise unimplemented("response_format", "only text is served by this version")

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
        for token, bias in (self.logit_bias or {}).items():
            params.logit_bias[_token_id(token)] = bias


def _token_id(key: str) -> int:
    """JSON's keys are texts."""
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= UINT32):
        raise invalid("logit_bias", f"keys must be token ids such as '50', one is {key[:64]!r}")
    return int(key)

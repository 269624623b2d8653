"""OpenAI's completion requests: one or several prompts, each a text or token ids."""

from collections.abc import Mapping
from typing import Any, ClassVar

from kvmesh.errors import invalid
from kvmesh.packing import pack_tokens
from kvmesh.v1 import generate_pb2 as pb
from router.openai_fields import Count, Prompts
from router.openai_requests import AnswerOptions, SamplingBody

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, where the context has room for so many."""

Prompt = str | list[int]


class CompletionBody(SamplingBody):
    """POST /v1/completions."""

    unserved: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **SamplingBody.unserved,
        "suffix": ("",),
        "add_special_tokens": (True,),
    }

    prompt: Prompts | None = None
    logprobs: Count | None = None
    echo: bool | None = None

    @property
    def options(self) -> AnswerOptions:
        return self._options(logprobs=self.logprobs is not None, echo=bool(self.echo))

    def to_requests(self, request_id: str) -> list[pb.GenerateRequest]:
        """One a prompt, of which each has the id with its place behind it if there are several.

        Raises INVALID_ARGUMENT and UNIMPLEMENTED by field.
        """
        prompts = self._prompts()
        if len(prompts) == 1:
            return [self._to_request(prompts[0], request_id)]
        return [
            self._to_request(prompt, f"{request_id}-{place}")
            for place, prompt in enumerate(prompts)
        ]

    def _to_request(self, prompt: Prompt, request_id: str) -> pb.GenerateRequest:
        request = self._request(request_id, self.max_tokens)
        if self.logprobs is not None:
            request.sampling.logprobs = self.logprobs
            if self.echo and self.prompt_logprobs is None:
                request.sampling.prompt_logprobs = self.logprobs
        if isinstance(prompt, str):
            request.text = prompt
        else:
            request.token_ids = pack_tokens(prompt)
        return request

    def _prompts(self) -> list[Prompt]:
        prompt = self.prompt
        several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
        prompts: list[Prompt] = prompt if several else [prompt]  # type: ignore[assignment,list-item]
        for place, each in enumerate(prompts):
            if not each:
                field = f"prompt[{place}]" if len(prompts) > 1 else "prompt"
                raise invalid(field, "must not be empty, send a text or a list of token ids")
        return prompts

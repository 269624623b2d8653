"""Failures as HTTP answers with OpenAI's error body."""

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse

from kvmesh.errors import Code, RequestError
from router.openai_answers import error_body

# Fields that are named otherwise in OpenAI's requests than in ours.
_NAMES = {
    "text": "prompt",
    "token_ids": "prompt",
    "tools_json": "tools",
    "template_args_json": "chat_template_kwargs",
}


def in_openais_words(error: RequestError, names: Mapping[str, str]) -> RequestError:
    """The same error, about the field as the client knows it. `names`: its own for some of ours."""
    name = {**_NAMES, **names}.get(error.field or "")
    if name is None:
        return error
    message = error.message.replace(f"{error.field}:", f"{name}:", 1)
    return RequestError(error.code, message, field=name, retry_after=error.retry_after)


def error_response(error: RequestError) -> JSONResponse:
    """With `Retry-After`, whole seconds, when the error says when to come back."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    if error.code == Code.UNAUTHENTICATED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error), error.http_code, headers)

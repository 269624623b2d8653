"""Failures as HTTP answers with OpenAI's error body."""

import math

from starlette.responses import JSONResponse

from kvmesh.errors import RequestError
from router.openai_answers import error_body


def error_response(error: RequestError) -> JSONResponse:
    """With `Retry-After`, whole seconds, when the error says when to come back."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    return JSONResponse(error_body(error), error.http_code, headers)

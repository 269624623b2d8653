"""Failures as HTTP answers with OpenAI's error body."""

import math

from starlette.responses import JSONResponse

from kvmesh.errors import RequestError
from router.grpc_front import internal
from router.openai_answers import error_body


def as_request_error(error: Exception) -> RequestError:
    """`error` itself if a client may see it, else INTERNAL with the id of a log line."""
    return error if isinstance(error, RequestError) else internal(error)


def error_response(error: RequestError) -> JSONResponse:
    """With `Retry-After`, whole seconds, when the error says when to come back."""
    headers = {}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
    return JSONResponse(error_body(error), error.http_code, headers)

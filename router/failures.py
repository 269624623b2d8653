"""What went wrong inside, as something that a client may see."""

import uuid

import structlog

from kvmesh.errors import Code, RequestError

log = structlog.get_logger("router")


def as_request_error(error: Exception) -> RequestError:
    """`error` itself if it is meant for the client, else INTERNAL with the id of a log line."""
    if isinstance(error, RequestError):
        return error
    error_id = uuid.uuid4().hex[:12]
    log.error("internal", error_id=error_id, exc_info=error)
    return RequestError(Code.INTERNAL, f"internal error {error_id}, see the router's log")

"""Reading a request and noticing that the client has gone, on the level of ASGI."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from kvmesh.errors import Code, RequestError, invalid

B = TypeVar("B", bound=BaseModel)

DRAIN_FACTOR = 16
"""A body above the bound is read on, and thrown away, up to so many times the bound: a client that
still sends sees no answer otherwise.
"""


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body. Holds at most `max_bytes` of it; raises INVALID_ARGUMENT for a longer one."""
    declared = int(request.headers.get("content-length") or 0)
    if declared > max_bytes and request.headers.get("expect"):
        raise _too_large(max_bytes)  # the client has not begun to send
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > DRAIN_FACTOR * max_bytes:
                break
            if size <= max_bytes:
                chunks.append(chunk)
            else:
                chunks.clear()
    except ClientDisconnect:
        raise RequestError(Code.CANCELLED, "the client left while it sent the request") from None
    if size > max_bytes:
        raise _too_large(max_bytes)
    return b"".join(chunks)


def _too_large(max_bytes: int) -> RequestError:
    return invalid("body", f"must have at most {max_bytes} bytes")


def parse_body(body: bytes, kind: type[B]) -> B:
    """The request in `body`. Raises INVALID_ARGUMENT that names the first wrong field.

    Bytes that are no UTF-8 become lone surrogates, which the model refuses by the name of the field
    that has them. NaN gets through the parser for the same reason.
    """
    try:
        value = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise invalid("body", f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid("body", "must be a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _first_problem(error) from None


def _first_problem(error: ValidationError) -> RequestError:
    problems = error.errors(include_url=False, include_context=False)
    field = problems[0]["loc"][:1]
    # A union has a problem for each of its members: the one that fits best gets furthest.
    problem = max((each for each in problems if each["loc"][:1] == field), key=_fit)
    message = problem["msg"].removeprefix("Value error, ")
    given = problem["input"]
    shown = f" (is {given!r})" if isinstance(given, int | float) else ""
    return invalid(_path(problem["loc"]), message[0].lower() + message[1:] + shown)


def _fit(problem: ErrorDetails) -> tuple[int, bool]:
    depth = sum(isinstance(part, int) for part in problem["loc"])
    return depth, not problem["type"].endswith("_type")


def _path(location: tuple[int | str, ...]) -> str:
    """messages[0].content; without pydantic's names for the members of a union."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int"):
            path += f".{part}" if path else part
    return path or "body"


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs `work` and raises what it raises. Raises CANCELLED, and cancels it, once the client has
    gone.

    The body must have been read: from then on ASGI has nothing to say but that the client has left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise RequestError(Code.CANCELLED, "the client left")
        task.result()
    finally:
        for each in (gone, task):
            each.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

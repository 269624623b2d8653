"""Reading a request and noticing that the client has gone, on the level of ASGI."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
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
    problem = error.errors(include_url=False, include_context=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    shown = problem["input"]
    given = f" (is {shown!r})" if isinstance(shown, int | float) else ""
    return invalid(_path(problem["loc"]), message[0].lower() + message[1:] + given)


def _path(location: tuple[int | str, ...]) -> str:
    """messages[0].content; without pydantic's names for the members of a union."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif "[" not in part and part not in _TYPE_NAMES:
            path += f".{part}" if path else part
    return path or "body"


_TYPE_NAMES = frozenset(("str", "int", "float", "bool"))


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Runs `work`, and cancels it as soon as the client has gone. True if it came to its end;
    raises what it raises.

    The body must have been read: from then on ASGI has nothing to say but that the client has left.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_wait_until_gone(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            return False
        task.result()
        return True
    finally:
        for each in (gone, task):
            each.cancel()
        await asyncio.gather(gone, task, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

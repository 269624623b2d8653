"""Reads what a client sends, within bounds, and says what is wrong with it by field."""

import asyncio
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from kvmesh.errors import Code, RequestError, invalid

B = TypeVar("B", bound=BaseModel)

DRAIN_FACTOR = 16
"""A body above the bound is read on, and thrown away, up to so many times the bound: a client that
still sends sees no answer otherwise.
"""


class SlowClientError(RequestError):
    """The client did not send its request in time; HTTP has a code for that."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.DEADLINE_EXCEEDED, message)

    @property
    def http_code(self) -> int:
        return 408


async def read_body(request: Request, max_bytes: int, timeout: float) -> bytes:
    """The whole body. Holds at most `max_bytes` of it; raises INVALID_ARGUMENT for a longer one,
    SlowClientError for one that has not come within `timeout` seconds.
    """
    declared = int(request.headers.get("content-length") or 0)
    if declared > max_bytes and request.headers.get("expect"):
        raise _too_large(max_bytes)  # the client has not begun to send
    try:
        async with asyncio.timeout(timeout):
            body = await _read_at_most(request, max_bytes)
    except ClientDisconnect:
        raise RequestError(Code.CANCELLED, "the client left while it sent the request") from None
    except TimeoutError:
        raise SlowClientError(f"the body did not come within {timeout:g} s") from None
    if body is None:
        raise _too_large(max_bytes)
    return body


async def _read_at_most(request: Request, max_bytes: int) -> bytes | None:
    """None for a longer body, of which nothing is kept."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= max_bytes:
            chunks.append(chunk)
            continue
        chunks.clear()
        if size > DRAIN_FACTOR * max_bytes:
            break
    return b"".join(chunks) if size <= max_bytes else None


def _too_large(max_bytes: int) -> RequestError:
    return invalid("body", f"must have at most {max_bytes} bytes")


def parse_body(body: bytes, kind: type[B]) -> B:
    """The request in `body`. Raises INVALID_ARGUMENT that names the first wrong field."""
    return validated(read_json(body), kind)


def read_json(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises INVALID_ARGUMENT.

    Bytes that are no UTF-8 become lone surrogates, which the model refuses by the name of the field
    that has them. NaN gets through the parser for the same reason.
    """
    try:
        with _without_collector():
            value = json.loads(body.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise invalid("body", f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise invalid("body", "must be a JSON object")
    return value


def validated(value: dict[str, Any], kind: type[B]) -> B:
    """Raises INVALID_ARGUMENT that names the first wrong field."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _first_problem(error) from None


@contextmanager
def _without_collector() -> Iterator[None]:
    """A body of empty lists is a million objects, none of them in a cycle; Python's collector would
    look at all of them again and again, which takes ten times as long as to read them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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

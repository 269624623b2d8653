"""What every HTTP request passes first: the bound on its head, and its id."""

import uuid
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvmesh.errors import Code, RequestError
from kvmesh.tls import names_in
from kvmesh.validation import is_request_id
from router.http_errors import error_response

_GIVEN, _CHOSEN = "kvmesh.given_request_id", "kvmesh.request_id"
_NAMES = "kvmesh.certified_names"


class LargeHeadError(RequestError):
    """More than a request line and its headers may have; HTTP has a code for that."""

    def __init__(self, max_bytes: int) -> None:
        message = f"headers: must have at most {max_bytes} bytes together, send fewer or shorter"
        super().__init__(Code.INVALID_ARGUMENT, message, field="headers")

    @property
    def http_code(self) -> int:
        return 431


class Head:
    """An ASGI application around another. Every response has an `x-request-id`: the client's, if it
    sent one that is right.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        scope[_GIVEN] = given.decode("latin-1")
        scope[_CHOSEN] = scope[_GIVEN] if is_request_id(scope[_GIVEN]) else uuid.uuid4().hex

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = scope[_CHOSEN]
            await send(message)

        if _size(scope) > self._max:
            await error_response(LargeHeadError(self._max))(scope, receive, named)
        else:
            await self._app(scope, receive, named)


def choose_request_id(scope: Scope, own: str | None) -> str:
    """The header's, else `own` of the body, else the one that was made; the response gets it if it
    is a right one.
    """
    chosen: str = scope[_GIVEN] or own or scope[_CHOSEN]
    if is_request_id(chosen):
        scope[_CHOSEN] = chosen
    return chosen


def certified(app: ASGIApp, certificate: Mapping[str, Any]) -> ASGIApp:
    """The application, for a client that has proved to own a certificate."""
    names = names_in(certificate)

    async def named(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, _NAMES: names}, receive, send)

    return named


def names_of_client(scope: Scope) -> frozenset[str]:
    """In its certificate; none without one."""
    names: frozenset[str] = scope.get(_NAMES, frozenset())
    return names


def _size(scope: Scope) -> int:
    target = len(scope["raw_path"]) + len(scope["query_string"])
    return target + sum(len(name) + len(value) for name, value in scope["headers"])

"""The built-in web page: its files, and the state that it shows to admins."""

import time
from collections.abc import Awaitable, Callable
from importlib import resources
from ipaddress import IPv6Address, ip_address
from math import inf
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kvmesh.errors import RequestError
from router.admin import AdminRole, Visitor
from router.http_errors import error_response
from router.http_head import names_of_client
from router.metadata import presented_key
from router.overview import Overview
from router.plain_json import to_json

PAGE = "index.html"
FILES = {
    PAGE: "text/html",
    "ui.css": "text/css",
    **dict.fromkeys(("ui.js", "dom.js", "fleet.js", "nodes.js", "requests.js"), "text/javascript"),
}
HEADERS = {
    # Nothing from elsewhere, nothing inline, and no text that could become markup.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

FRESH = 0.25
"""Seconds in which everybody who looks gets the same state: a page asks each second, and to write
one takes as long as the routing of some requests.
"""

Handler = Callable[[Request], Awaitable[Response]]


class UiPage:
    """The files are for everybody, `/ui/state` (an OverviewResponse as JSON) is for admins."""

    def __init__(self, overview: Overview, admin: AdminRole) -> None:
        self._overview = overview
        self._admin = admin
        self._body, self._written = b"", -inf

    def routes(self) -> list[Route]:
        files = [Route(f"/ui/{name}", _file(name)) for name in FILES if name != PAGE]
        return [Route("/ui", _file(PAGE)), *files, Route("/ui/state", self._state)]

    async def _state(self, request: Request) -> Response:
        try:
            self._admin.admit("/ui", _visitor(request))
        except RequestError as error:
            return error_response(error)
        now = time.monotonic()
        if now - self._written >= FRESH:
            self._body, self._written = to_json(self._overview.read()), now
        return Response(self._body, headers=HEADERS, media_type="application/json")


def _file(name: str) -> Handler:
    content = resources.files("router").joinpath("ui", name).read_bytes()

    async def serve(_request: Request) -> Response:
        return Response(content, headers=HEADERS, media_type=FILES[name])

    return serve


def _visitor(request: Request) -> Visitor:
    """A page of another site, in a browser on the router's host, is not local: its requests have an
    Origin, or a name of its own for this host. Nor is who comes through a proxy there: uvicorn
    takes the client's address from its x-forwarded-for.
    """
    local = (
        request.client is not None
        and _is_loopback(request.client.host)
        and _is_loopback(_named_host(request))
        and "origin" not in request.headers
    )
    key = presented_key(request.headers.items())
    return Visitor(key, names_of_client(request.scope), local)


def _named_host(request: Request) -> str:
    """As the client wrote it: Starlette takes its own where it cannot read that."""
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    plain = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (plain or address).is_loopback

"""The OpenAI-compatible HTTP server, on the same event loop as gRPC."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Iterator

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from kvmesh import __version__
from kvmesh.errors import Code, RequestError
from kvmesh.tls import ServerTls
from kvmesh.v1 import fleet_pb2
from router.config import RouterConfig
from router.core import RouterCore
from router.failures import as_request_error
from router.fleet_view import FleetView
from router.generation import GenerationEndpoint
from router.http_connection import PatientConfig
from router.http_endpoint import Endpoint
from router.http_errors import error_response
from router.http_head import Head
from router.openai_answers import error_body
from router.openai_chat import ChatBody
from router.openai_completions import CompletionBody
from router.tokenization import DetokenizeEndpoint, TokenizeEndpoint
from router.ui_page import UiPage

ENDING = 1.0
"""Seconds for the last words of answers that the grace has cut off."""


class HttpFront:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        core: RouterCore,
        view: FleetView,
        ui: UiPage,
        config: RouterConfig,
        tls: ServerTls | None,
    ) -> None:
        self._core = core
        self._view = view
        self._ui = ui
        self._config = config
        self._closing = asyncio.Event()
        self._server = _Server(
            PatientConfig(
                self._application(),
                header_timeout=config.header_timeout,
                tls=tls,
                h11_max_incomplete_event_size=config.max_header_bytes,
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                ws="none",
                # For a client that does not even read that its answer has ended.
                timeout_graceful_shutdown=math.ceil(config.shutdown_grace + ENDING),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Returns the port. Raises OSError when it is taken."""
        listener = self._listen()
        port: int = listener.getsockname()[1]
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http")
        return port

    async def stop(self, grace: float) -> None:
        """Takes no new connection; running answers may finish within `grace` seconds, then they end
        with an error that says why.
        """
        if self._serving is None:
            return
        self._server.should_exit = True
        await asyncio.wait((self._serving,), timeout=grace)
        self._closing.set()
        await asyncio.wait((self._serving,), timeout=2 * ENDING)
        self._server.force_exit = True
        await self._serving

    def _listen(self) -> socket.socket:
        address = (self._config.http_host, self._config.http_port)
        try:
            if ":" in address[0]:  # :: is for IPv4 too, as gRPC takes it
                both = socket.has_dualstack_ipv6()
                return socket.create_server(
                    address, family=socket.AF_INET6, backlog=1024, dualstack_ipv6=both
                )
            return socket.create_server(address, backlog=1024)
        except OSError as error:
            raise OSError(
                f"http_port: cannot listen on {address[0]}:{address[1]}: {error}"
            ) from error

    def _application(self) -> ASGIApp:
        app: ASGIApp = self._routes()
        if self._config.cors_allow_origins:
            app = CORSMiddleware(
                app,
                allow_origins=self._config.cors_allow_origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),
                expose_headers=("x-request-id", "x-kvmesh-node", "retry-after"),
            )
        return Head(app, self._config.max_header_bytes)

    def _routes(self) -> Starlette:
        shared = (self._core, self._config, self._closing)
        posts: dict[str, Endpoint] = {
            "/v1/completions": GenerationEndpoint(CompletionBody, *shared),
            "/v1/chat/completions": GenerationEndpoint(ChatBody, *shared),
            "/tokenize": TokenizeEndpoint("tokenize", *shared),
            "/detokenize": DetokenizeEndpoint("detokenize", *shared),
        }
        return Starlette(
            routes=[
                *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
                Route("/v1/models", self._models),
                Route("/v1/models/{model:path}", self._model),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/version", self._version),
                *self._ui.routes(),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _error},
        )

    async def _models(self, _request: Request) -> Response:
        models = [self._describe_model()] if self._core.fleet.defined else []
        return JSONResponse({"object": "list", "data": models})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["model"]
        if not self._core.fleet.defined or self._core.fleet.model.name != name:
            raise HTTPException(404, f"no model {name!r} is served here")
        return JSONResponse(self._describe_model())

    def _describe_model(self) -> dict[str, object]:
        model = self._core.fleet.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created,
            "owned_by": "kvmesh",
            "max_model_len": model.max_model_len,
        }

    async def _health(self, _request: Request) -> Response:
        nodes = [
            {
                "name": node.name,
                "address": node.address,
                "health": _word(node.health),
                "detail": node.detail,
            }
            for node in self._view.nodes()
        ]
        serving = self._view.serving
        status = "ok" if serving else "no node is up"
        return JSONResponse({"status": status, "nodes": nodes}, 200 if serving else 503)

    async def _metrics(self, _request: Request) -> Response:
        content = generate_latest(self._core.metrics.registry)
        return Response(content, media_type=CONTENT_TYPE_LATEST)

    async def _version(self, _request: Request) -> Response:
        return JSONResponse({"version": __version__})


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The process's signals are not this server's: the router stops all its parts in order."""
        yield


def _word(health: fleet_pb2.NodeHealth.ValueType) -> str:
    return fleet_pb2.NodeHealth.Name(health).removeprefix("NODE_HEALTH_").lower()


async def _http_error(_request: Request, error: Exception) -> Response:
    """Unknown paths and methods: their own HTTP status, OpenAI's body."""
    assert isinstance(error, HTTPException)
    code = Code.NOT_FOUND if error.status_code == 404 else Code.UNIMPLEMENTED
    body = error_body(RequestError(code, error.detail))
    return JSONResponse(body, error.status_code, error.headers)


async def _error(_request: Request, error: Exception) -> Response:
    return error_response(as_request_error(error))

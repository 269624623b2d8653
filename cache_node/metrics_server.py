"""A node's metrics over HTTP."""

from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from kvmesh.certificates import CertificateFiles

PATIENCE = 10.0  # seconds for a client to say what it wants, and to take it


class MetricsServer:
    """Serves /metrics on a thread of its own, over TLS with a certificate, until `close`."""

    def __init__(
        self, port: int, host: str, registry: CollectorRegistry, tls: CertificateFiles
    ) -> None:
        """Port 0 takes a free one. Raises OSError when the port is in use."""
        self._server, self._thread = start_http_server(
            port,
            host,
            registry=registry,
            certfile=_text(tls.cert),
            keyfile=_text(tls.key),
            client_cafile=_text(tls.ca),
            client_auth_required=tls.ca is not None,
        )
        server: Any = self._server  # whose types say less than what it can
        server.set_app(_as_text(server.get_app()))
        # A client that connects and is silent keeps a thread of its own for a while, not the one
        # that all others and `close` wait for.
        if tls.cert is not None:
            server.socket.do_handshake_on_connect = False
        handler = server.RequestHandlerClass
        server.RequestHandlerClass = type("Handler", (handler,), {"timeout": PATIENCE})
        server.handle_error = _ignore
        self.port = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def registry_of(*collectors: Collector | None) -> CollectorRegistry:
    """Those that are there."""
    registry = CollectorRegistry()
    for collector in collectors:
        if collector is not None:
            registry.register(collector)
    return registry


def _as_text(app: Any) -> Any:
    """The WSGI application, in Prometheus' text format whatever is asked for: in OpenMetrics
    prometheus-client 0.26 writes `vllm_` for `vllm:`.
    """

    def answer(environ: dict[str, Any], start_response: Any) -> Any:
        return app({**environ, "HTTP_ACCEPT": "text/plain"}, start_response)

    return answer


def _ignore(_request: Any, _client: Any) -> None:
    """A client that has gone, or speaks no HTTP or TLS, is no line of the log."""


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)

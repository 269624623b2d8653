"""Whether a process tells OpenTelemetry of its requests, and whom."""

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from kvmesh.tracing import Tracing

_ENDPOINT = re.compile(r"https?://[^/?#\s]+/?")


def check_traces_endpoint(endpoint: str | None) -> None:
    """Raises ValueError."""
    if endpoint is not None and not _is_endpoint(endpoint):
        raise ValueError(
            "otlp_traces_endpoint: must be that of an OTLP collector over gRPC, such as "
            f"http://127.0.0.1:4317, is {endpoint!r}"
        )


def _is_endpoint(endpoint: str) -> bool:
    try:
        port = urlsplit(endpoint).port
    except ValueError:  # no number, or beyond all ports
        return False
    return port != 0 and _ENDPOINT.fullmatch(endpoint) is not None


def start_tracing(endpoint: str | None, service: str, instance: str) -> "Tracing | None":
    """None without an endpoint: then nothing of OpenTelemetry is loaded. Raises ValueError when it
    is not installed.
    """
    if endpoint is None:
        return None
    try:
        from kvmesh.tracing import Tracing
    except ModuleNotFoundError as error:
        problem = f"needs `pip install 'kvmesh[otel]'`: there is no {error.name}"
        raise ValueError(f"otlp_traces_endpoint: {problem}") from error
    return Tracing(endpoint, service, instance)

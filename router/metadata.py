"""Which metadata crosses the router, in each direction."""

from collections.abc import Iterable, Mapping

from grpc import aio

Pair = tuple[str, str | bytes]

ADMITTED = "kvmesh-admitted"
USAGE = "kvmesh-usage-bin"
STATUS_DETAILS = "grpc-status-details-bin"

# They belong to one hop, or are secrets between client and router.
_HOP = frozenset(
    (
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "cookie",
        "date",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "x-api-key",
    )
)
_HOP_PREFIXES = (":", "grpc-", "proxy-")
_OURS = "kvmesh-"

# A browser's or a proxy's headers are not for the node; the trace that a request belongs to is.
_TRACE = ("traceparent", "tracestate")
_LONGEST_TRACE = 2048  # characters; more than the node's bound on all metadata leaves


def to_node(client: Iterable[Pair]) -> aio.Metadata:
    """A client's own metadata, without what belongs to the hop, without names that only kvmesh may
    set, and without values that gRPC would refuse to send, for which the call would fail.
    """
    return aio.Metadata(
        *(
            (name, value)
            for name, value in client
            if _travels(name) and not name.startswith(_OURS) and _can_be_sent(value)
        )
    )


def trace(headers: Mapping[str, str]) -> list[Pair]:
    """The trace that an HTTP request belongs to. One that breaks the rules of W3C's Trace Context
    is ignored, as they say.
    """
    return [
        (name, headers[name])
        for name in _TRACE
        if name in headers and len(headers[name]) <= _LONGEST_TRACE
    ]


def to_client(node: Iterable[Pair] | None) -> list[Pair]:
    """What a node said beside its frames, ours and its own, without what belongs to the hop."""
    return [(name, value) for name, value in node or () if _travels(name)]


def with_details(node: Iterable[Pair] | None) -> list[Pair]:
    """The trailing metadata of a failed call: as `to_client`, and the details of its status."""
    details = [(name, value) for name, value in node or () if name == STATUS_DETAILS]
    return to_client(node) + details


def find(pairs: Iterable[Pair] | None, name: str) -> str | bytes | None:
    """The last value of `name`, None without."""
    value = None
    for key, candidate in pairs or ():
        if key == name:
            value = candidate
    return value


def presented_key(client: Iterable[Pair]) -> str | None:
    """The key that a client says who it is with: `authorization: Bearer KEY`, or `x-api-key`."""
    pairs = list(client)
    said = find(pairs, "authorization")
    if isinstance(said, str):
        scheme, _, key = said.partition(" ")
        return key.strip() or None if scheme.lower() == "bearer" else None
    plain = find(pairs, "x-api-key")
    return plain or None if isinstance(plain, str) else None


def _can_be_sent(value: str | bytes) -> bool:
    return isinstance(value, bytes) or (value.isascii() and value.isprintable())


def _travels(name: str) -> bool:
    return name not in _HOP and not name.startswith(_HOP_PREFIXES)

"""Which metadata crosses the router, in each direction."""

from collections.abc import Iterable

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


def to_node(client: Iterable[Pair]) -> aio.Metadata:
    """A client's own metadata, without what belongs to the hop and without names that only kvmesh
    may set.
    """
    return aio.Metadata(
        *((name, value) for name, value in client if _travels(name) and not name.startswith(_OURS))
    )


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


def _travels(name: str) -> bool:
    return name not in _HOP and not name.startswith(_HOP_PREFIXES)

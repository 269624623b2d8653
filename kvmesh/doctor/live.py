"""Reads a running fleet: its router, and the nodes that the router knows."""

import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException, HTTPResponse
from urllib.parse import urlsplit

from kvmesh.doctor.readings import Readings, parse
from kvmesh.doctor.snapshot import Snapshot, sorted_out

TIMEOUT = 10.0  # seconds for an answer to begin, and again for all of it
LARGEST = 64 << 20  # bytes of an answer; a node tells some 100 KB
PIECE = 1 << 16
AT_ONCE = 16


class UnreadableError(Exception):
    """An address that did not give what was asked; the message names it and says why."""


def read_fleet(
    routers: Sequence[str], nodes: Sequence[str], context: ssl.SSLContext | None = None
) -> Snapshot:
    """Of routers and nodes at these URLs, and the nodes that the routers name. What does not answer
    is in `unread`.
    """
    answered, unread = _read_all(routers, context)
    named = [
        labels["metrics"]
        for router in answered
        for labels, _ in router.samples.get("kvmesh_router_node_info", ())
        if labels.get("metrics")
    ]
    urls = dict.fromkeys(metrics_url(each) for each in (*nodes, *named))
    more, missing = _read_all(list(urls), context)
    return sorted_out([*answered, *more], [*unread, *missing])


def metrics_url(address: str) -> str:
    """`address` with what was left out of it: http and /metrics."""
    url = address if "://" in address else f"http://{address}"
    try:
        return url if urlsplit(url).path.rstrip("/") else f"{url.rstrip('/')}/metrics"
    except ValueError:  # `fetch` says what is wrong
        return url


def fetch(url: str, context: ssl.SSLContext | None) -> str:
    """Raises UnreadableError."""
    try:
        if urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("must begin with http:// or https://")
        with urllib.request.urlopen(url, timeout=TIMEOUT, context=context) as answer:
            return _whole(answer).decode()
    except urllib.error.HTTPError as error:
        error.close()
        raise UnreadableError(f"cannot read {url}: it answers {error.code}") from error
    except (OSError, ValueError, HTTPException) as error:  # of sockets and TLS; URLs and bytes
        reason = getattr(error, "reason", error)  # urllib wraps that of the socket
        raise UnreadableError(f"cannot read {url}: {reason}") from error


def _whole(answer: HTTPResponse) -> bytes:
    body, end = bytearray(), time.monotonic() + TIMEOUT
    while piece := answer.read1(PIECE):
        body += piece
        if len(body) > LARGEST:
            raise ValueError(f"the answer has more than {LARGEST >> 20} MiB")
        if time.monotonic() > end:
            raise ValueError(f"the answer has not come in {TIMEOUT:g} s")
    if answer.length:
        raise ValueError("the answer ends too soon")
    return bytes(body)


def _read_all(
    addresses: Sequence[str], context: ssl.SSLContext | None
) -> tuple[list[Readings], list[str]]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda each: _read(metrics_url(each), context), addresses))
    readings = [each for each in answers if isinstance(each, Readings)]
    return readings, [each for each in answers if isinstance(each, str)]


def _read(url: str, context: ssl.SSLContext | None) -> Readings | str:
    try:
        text = fetch(url, context)
        readings = parse(urlsplit(url).netloc, text)
    except UnreadableError as error:
        return str(error)
    except ValueError as error:
        return f"cannot read {url}: these are no metrics: {error}"
    if not any(name.startswith("kvmesh_") for name in readings.samples):
        return f"cannot read {url}: it tells metrics, but none of kvmesh"
    return readings

"""Reads a fleet out of a Prometheus that scrapes it."""

import json
import ssl
import time
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from kvmesh.doctor.live import UnreadableError, fetch
from kvmesh.doctor.readings import COUNTED, Readings, collect
from kvmesh.doctor.snapshot import Snapshot, sorted_out

QUERY = '{__name__=~"kvmesh_.+|process_cpu_seconds_total"}'


class _Series(NamedTuple):
    """A sample's name and labels, sorted, and who was scraped."""

    instance: str
    name: str
    labels: tuple[tuple[str, str], ...]


def read_prometheus(url: str, window: float, context: ssl.SSLContext | None = None) -> Snapshot:
    """What is there now, and what was counted in the last `window` seconds. Raises UnreadableError.

    Two instant queries, and their difference: of a process that has started again in between, all
    that it has counted.
    """
    now = time.time()
    newest = dict(_query(url, now, context))
    if not newest:
        raise UnreadableError(f"{url} has no metrics of kvmesh: does it scrape routers and nodes?")
    oldest = dict(_query(url, now - window, context))
    instances: dict[str, list[tuple[str, dict[str, str], float]]] = {}
    for series, value in newest.items():
        counted = _increase(value, oldest.get(series)) if _is_counted(series.name) else value
        told = (series.name, dict(series.labels), counted)
        instances.setdefault(series.instance, []).append(told)
    return sorted_out(
        [Readings(name, collect(samples), window) for name, samples in instances.items()]
    )


def _is_counted(name: str) -> bool:
    return name.endswith(COUNTED)


def _increase(now: float, before: float | None) -> float:
    return now if before is None or before > now else now - before


def _query(url: str, at: float, context: ssl.SSLContext | None) -> list[tuple[_Series, float]]:
    base = url if "://" in url else f"http://{url}"
    text = fetch(
        f"{base.rstrip('/')}/api/v1/query?{urlencode({'query': QUERY, 'time': f'{at:.3f}'})}",
        context,
    )
    try:
        return [_read(sample) for sample in json.loads(text)["data"]["result"]]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        address = urlsplit(base).netloc
        raise UnreadableError(f"{address} does not answer as a Prometheus does") from error


def _read(sample: dict[str, Any]) -> tuple[_Series, float]:
    labels = {name: str(value) for name, value in sample["metric"].items()}
    name, instance = labels.pop("__name__"), labels.pop("instance", "")
    labels.pop("job", None)
    return _Series(instance, name, tuple(sorted(labels.items()))), float(sample["value"][1])

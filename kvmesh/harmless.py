"""Metrics that cannot break a request, or a step."""

import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

import structlog

log = structlog.get_logger("metrics")

P = ParamSpec("P")


class Reporter(Protocol):
    """Has methods that only count. `report_once` hears of what goes wrong in them."""

    def report_once(self, error: Exception) -> None: ...


S = TypeVar("S", bound=Reporter)


def harmless(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """The method, which then never raises."""

    @functools.wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  # a metric may break nothing
            self.report_once(error)

    return guarded


class LogsOnce:
    """The first error is logged, and counted no further."""

    def __init__(self) -> None:
        self._broken = False

    def report_once(self, error: Exception) -> None:
        if not self._broken:
            self._broken = True
            log.error("metrics_broken", exc_info=error)

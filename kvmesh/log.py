"""Log lines of every kvmesh process: for people on a terminal, JSON lines for everything else.

KVMESH_LOG_FORMAT (console, json) overrides the choice and KVMESH_LOG_LEVEL the level. Libraries
that log through the standard library come out in the same form.
"""

import logging
import os
import sys
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

SHARED: tuple[Processor, ...] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
)
# Talk about themselves more than about their work.
QUIET = ("asyncio", "grpc", "httpx", "uvicorn")


def configure(component: str, name: str | None = None) -> None:
    """Sends all logging of this process to stderr, each line marked with `component` and `name`.

    `component` is the role (router, node, serve), `name` tells several of a role apart.
    """
    level = os.environ.get("KVMESH_LOG_LEVEL", "info").upper()
    structlog.configure(
        processors=[
            *SHARED[:2],
            *SHARED[3:],
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(component, name))
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for library in QUIET:
        logging.getLogger(library).setLevel(logging.WARNING)


def wants_json() -> bool:
    """Whether log lines of this process are for machines."""
    return (
        os.environ.get("KVMESH_LOG_FORMAT", "console" if sys.stderr.isatty() else "json") == "json"
    )


def _formatter(component: str, name: str | None) -> logging.Formatter:
    def mark(_logger: Any, _method: str, event: EventDict) -> EventDict:
        event["component"] = component
        if name is not None:
            event["name"] = name
        return event

    renderers: list[Processor]
    if wants_json():
        renderers = [
            mark,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    else:
        renderers = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=SHARED,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
    )

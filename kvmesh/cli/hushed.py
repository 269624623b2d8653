"""Parts of the product that run inside a command, without their log lines."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def hushed() -> Iterator[None]:
    """Only errors are logged inside: what simulated nodes do is nobody's news."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)

"""Fields of a config.json, and the error for what this engine does not compute."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LARGEST = 1 << 24
"""Of layers, elements and tokens: what says more is no model, and could not be counted."""


class UnsupportedModelError(ValueError):
    """The checkpoint asks for something that this engine does not compute."""


def positive(fields: Mapping[str, Any], name: str) -> int:
    """Raises UnsupportedModelError unless `name` is there and a positive integer, no larger than
    LARGEST.
    """
    value = fields.get(name)
    if not isinstance(value, int) or value <= 0:
        raise UnsupportedModelError(
            f"config.json: {name} must be a positive integer, got {value!r}"
        )
    if value > LARGEST:
        raise UnsupportedModelError(f"config.json: {name} must be at most {LARGEST:,}")
    return value


@contextmanager
def well_typed() -> Iterator[None]:
    """A block that reads fields. What cannot be read as the field should be raises
    UnsupportedModelError.
    """
    try:
        yield
    except (TypeError, AttributeError, LookupError, OverflowError) as error:
        raise UnsupportedModelError(f"config.json: a field is not of its type: {error}") from error

"""Fields of a config.json, and the error for what this engine does not compute."""

from collections.abc import Mapping
from typing import Any


class UnsupportedModelError(ValueError):
    """The checkpoint asks for something that this engine does not compute."""


def positive(fields: Mapping[str, Any], name: str) -> int:
    """Raises UnsupportedModelError unless `name` is there and a positive integer."""
    value = fields.get(name)
    if not isinstance(value, int) or value <= 0:
        raise UnsupportedModelError(
            f"config.json: {name} must be a positive integer, got {value!r}"
        )
    return value

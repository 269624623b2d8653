"""Files of a model that cannot be read: cut short, empty, or something else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from cache_node.model.config_fields import UnsupportedModelError


class DamagedFileError(ValueError):
    """Names the file, what is wrong with it, and what to do."""

    def __init__(self, path: Path, reason: object) -> None:
        super().__init__(f"{path} cannot be read: {reason}; copy or download it again")


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises DamagedFileError unless `path` holds an object in UTF-8."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DamagedFileError(path, error) from error
    if not isinstance(content, dict):
        raise DamagedFileError(path, "it is not a JSON object")
    return content


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What a reader of safetensors or GGUF raises over bytes that it cannot read becomes a
    DamagedFileError. What a file asks for, and cannot have, stays what it is.
    """
    try:
        yield
    except (UnsupportedModelError, DamagedFileError):
        raise
    except (SafetensorError, ValueError, LookupError, OverflowError) as error:
        raise DamagedFileError(path, error) from error

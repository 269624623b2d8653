"""Fixtures of all tests: the real model, converted once into the user's cache."""

from pathlib import Path

import pytest

from cache_node.config import DEFAULT_MODEL
from cache_node.model.source import find_model


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Directory of the default model, downloaded and converted if it is not there yet."""
    return find_model(DEFAULT_MODEL, None, lambda stage, fraction: None)

"""Images that all tests of compose files share."""

import pytest

from tests.compose.project import build_images


@pytest.fixture(scope="session")
def images():
    """Of the working tree, built once."""
    build_images()

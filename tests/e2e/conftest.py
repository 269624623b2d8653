"""The fleet that the end-to-end tests share."""

import pytest

from tests.e2e.serving import Serving


@pytest.fixture(scope="package")
def fleet():
    """Two nodes and a router, started by `kvmesh serve` with its defaults on free ports.

    One for all end-to-end tests, gone before the tests of other packages.
    """
    with Serving() as serving:
        yield serving

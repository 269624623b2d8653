"""For tests that need a Prometheus, of bench/prometheus.py, or promtool."""

import shutil

import pytest


def require_prometheus():
    """Where none is installed: skips, which CI refuses."""
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")

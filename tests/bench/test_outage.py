"""Requests do not depend on who watches them."""

import json

import pytest
from typer.testing import CliRunner

from kvmesh.cli.main import app
from tests.prometheus_fixture import require_prometheus

pytestmark = pytest.mark.timeout(240)
MISSED = 2  # exit code: a few seconds say nothing of times


def test_no_request_fails_while_prometheus_is_frozen_or_dead(smollm2):
    require_prometheus()
    result = CliRunner().invoke(app, ["bench", "outage", "--seconds", "0.5", "--json"])
    assert result.exit_code in (0, MISSED), result.output
    told = json.loads(result.stdout)
    assert told["failed"] == 0
    assert {"frozen", "dead"} < set(told["whole_s"])

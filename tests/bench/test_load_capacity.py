"""What the load generator costs is measured against a server that costs nothing."""

import pytest

from bench.load import capacity
from bench.load.capacity import measure_capacity


def test_both_transports_are_measured(monkeypatch):
    monkeypatch.setattr(capacity, "REQUESTS", 64)
    grpc, http = measure_capacity(1)
    assert (grpc.transport, http.transport) == ("gRPC", "HTTP")
    for each in (grpc, http):
        assert 1e-6 < each.message.least < 1e-3
        assert 1 / each.messages == pytest.approx(each.message.least)

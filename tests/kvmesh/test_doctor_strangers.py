"""`kvmesh doctor` asks what is no kvmesh, or lies: it says so in a line, in time."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from kvmesh.cli.main import app
from kvmesh.doctor import live

UNREAD = 3


class Stranger(BaseHTTPRequestHandler):
    """Writes what its server was given to each who asks, and again and again what is endless."""

    def do_GET(self):
        self.wfile.write(self.server.answer)
        while self.server.more:
            try:
                self.wfile.write(self.server.more)
            except OSError:
                return

    def log_message(self, *_):
        pass


@pytest.fixture
def stranger():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    server.answer, server.more = b"", b""
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def doctor(*arguments):
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert isinstance(result.exception, SystemExit), result.exception
    return result


def told(stranger, *samples):
    """The answer of a Prometheus that has scraped these."""
    node = sample("kvmesh_node_info", "1", node="node-7", max_model_len="512")
    router = sample("kvmesh_router_requests_in_flight", "0")
    body = json.dumps({"data": {"result": [node, router, *samples]}}).encode()
    stranger.answer = ok(body)
    return doctor("--prometheus", stranger.url)


def ok(body):
    return b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def sample(name, value, **labels):
    return {"metric": {"__name__": name, "instance": "h:1", **labels}, "value": [0, value]}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc", "ends too soon"),
        (b"nonsense\r\n\r\n", "nonsense"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "IncompleteRead"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"\r\n", "headers"),
        (ok(b"\x1f\x8b\x08"), "invalid start byte"),
    ],
)
def test_what_is_no_answer_is_named(stranger, answer, problem):
    stranger.answer = answer
    for ask in (("--node", stranger.url), ("--prometheus", stranger.url)):
        result = doctor(*ask)
        assert result.exit_code == UNREAD
        assert f"cannot read {stranger.url}" in result.output
        assert problem in result.output


@pytest.mark.parametrize(
    "body", [b"<html>", b"[" * 100_000, b'{"data":{"result":[{"metric":{}}]}}', b'{"data":[1]}']
)
def test_what_is_no_prometheus_is_named(stranger, body):
    stranger.answer = ok(body)
    result = doctor("--prometheus", stranger.url)
    assert result.exit_code == UNREAD
    assert "does not answer as a Prometheus does" in result.output


def test_an_answer_has_an_end_and_a_time(stranger, monkeypatch):
    stranger.answer, stranger.more = b"HTTP/1.0 200 OK\r\n\r\n", b"x" * 10_000
    monkeypatch.setattr(live, "LARGEST", 1 << 20)
    assert "more than 1 MiB" in doctor("--node", stranger.url).output
    monkeypatch.setattr(live, "LARGEST", 1 << 40)
    monkeypatch.setattr(live, "TIMEOUT", 0.2)
    assert "not come in 0.2 s" in doctor("--node", stranger.url).output


@pytest.mark.parametrize("url", ["file:///etc/passwd", "http://a b", "http://[::1", "http://h:x"])
def test_what_is_no_address_is_named(url):
    result = doctor("--node", url)
    assert result.exit_code == UNREAD
    assert f"cannot read {url}" in result.output
    assert "root:" not in result.output


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_is_left_out(stranger, value):
    names = ("kvmesh_num_preemptions_total", "kvmesh_router_queue_depth", "kvmesh_kv_pool_bytes")
    result = told(stranger, *(sample(name, value, kind="x", reason="x") for name in names))
    assert "node-7: preemptions: 0" in result.output
    assert "queue: 0 requests wait" in result.output


def test_metrics_of_another_version_cost_one_check_and_steer_no_terminal(stranger):
    nameless = sample("kvmesh_router_node_info", "1")
    hostile = sample("kvmesh_node_info", "1", node="\x1b[2J", instance="h:2")
    result = told(stranger, nameless, hostile)
    assert "router h:1: metrics: cannot be told" in result.output
    assert "KeyError: 'node'" in result.output
    assert "node-7: preemptions: 0" in result.output
    assert r"\x1b[2J: preemptions: 0" in result.output
    assert "\x1b" not in result.output

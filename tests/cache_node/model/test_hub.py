"""Models by their name on a hub: a server on a real socket that speaks as much of its protocol as
the hub's own client needs.
"""

import contextlib
import http.server
import json
import os
import socket
import subprocess
import sys
import threading
from hashlib import sha1
from pathlib import Path

import pytest
from huggingface_hub import constants

from cache_node.model.builtin import ModelNotFoundError
from cache_node.model.source import find_model

COMMIT = "c" * 40
ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"{}"}


class Hub(http.server.BaseHTTPRequestHandler):
    """Serves the model org/name, whose files and refusals its server has."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        model, files = "/api/models/org/name", self.server.files
        if self.server.error:
            self._answer(403, b"", {"X-Error-Code": self.server.error})
        elif self.path.startswith(f"{model}/revision/"):
            siblings = [{"rfilename": name} for name in files]
            self._json({"id": "org/name", "sha": COMMIT, "siblings": siblings})
        elif self.path.startswith(f"{model}/tree/{COMMIT}"):
            self._json([_entry(name, content) for name, content in files.items()])
        elif self.path.startswith(f"/org/name/resolve/{COMMIT}/"):
            name = self.path.rpartition(f"{COMMIT}/")[2]
            self.server.fetched.add(name)
            headers = {"ETag": f'"{_digest(files[name])}"', "X-Repo-Commit": COMMIT}
            self._answer(200, files[name], headers)
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    do_HEAD = do_GET  # noqa: N815

    def _json(self, value):
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _answer(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def _digest(content):
    return sha1(content).hexdigest()


def _entry(name, content):
    return {"type": "file", "path": name, "size": len(content), "oid": _digest(content)}


@contextlib.contextmanager
def hub(files, error=""):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.error, server.fetched = files, error, set()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def find(tmp_path, monkeypatch):
    """`find_model` with a hub on a port, and an empty cache."""

    def find(model, port):
        url = f"http://127.0.0.1:{port}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        template = f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        return find_model(model, None, lambda stage, fraction: None)

    return find


def test_a_model_is_fetched_once_and_nothing_but_what_is_needed(find):
    files = {**WEIGHTS, "pytorch_model.bin": b"x", "original/a.safetensors": b"x", "run.py": b"x"}
    with hub(files) as server:
        directory = find("org/name", server.server_port)
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == WEIGHTS
        assert server.fetched == set(WEIGHTS)
        port = server.server_port
    assert find("org/name", port) == directory  # what is here is used without the hub


@pytest.mark.parametrize(
    ("model", "files", "error", "reason"),
    [
        ("org/other", WEIGHTS, "", "no public model of that name"),
        ("org/name", WEIGHTS, "GatedRepo", "set HF_TOKEN"),
        ("org/name", {"config.json": b"{}"}, "", "no config.json with safetensors"),
        ("org/name", WEIGHTS, "Broken", "the hub did not give it .*403"),
    ],
    ids=["unknown", "gated", "other-format", "broken"],
)
def test_what_is_wrong_with_it_is_said(find, model, files, error, reason):
    with hub(files, error) as server, pytest.raises(ModelNotFoundError, match=reason) as caught:
        find(model, server.server_port)
    assert repr(model) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_told_in_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]  # nobody answers there any more
    environment = {**os.environ, "HF_HOME": str(tmp_path), "no_proxy": "127.0.0.1"}
    result = subprocess.run(
        [sys.executable, "-m", "kvmesh.cli", "model", "--model", "org/name"],
        cwd=ROOT,
        env={**environment, "HF_ENDPOINT": f"http://127.0.0.1:{port}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "the hub cannot be reached" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr

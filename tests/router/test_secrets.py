"""What a router writes holds no key, no prompt and no answer, whatever goes wrong in it."""

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import grpc
import httpx
import pytest

from kvmesh.cli.ports import free_ports
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.certificates import Authority
from tests.router.asking import request
from tests.router.node_process import NodeProcess
from tests.router.test_tenants import record, toml

KEYS = {"tenant": "kv-tenant-key-1", "wrong": "kv-wrong-key-2", "admin": "kv-admin-key-3"}
OTHERS = {
    "fleet key": "fleet-secret-" * 4,
    "redis password": "redis-word-4",
    "prompt": "my-own-prompt-5",
    "header": "cookie-word-6",
}


@pytest.fixture
def node():
    process = NodeProcess("node-0")
    yield process
    process.close()


def start(tmp_path: Path, node, *ports):
    (tmp_path / "tenants.toml").write_text(toml(acme=record(KEYS["tenant"])))
    (tmp_path / "admins").write_text(KEYS["admin"])
    (tmp_path / "fleet-key").write_text(OTHERS["fleet key"])
    options = {
        "--node": node.address,
        "--http-port": ports[0],
        "--grpc-port": ports[1],
        "--tenants": tmp_path / "tenants.toml",
        "--admin-key-file": tmp_path / "admins",
        "--fleet-key-file": tmp_path / "fleet-key",
        # Nobody is there: what it says of that is part of the log.
        "--redis": f"redis://:{OTHERS['redis password']}@127.0.0.1:1/0",
        "--shutdown-grace": 1,
    }
    arguments = [str(part) for option in options.items() for part in option]
    return subprocess.Popen(
        [sys.executable, "-m", "kvmesh.cli", "router", "--log-requests", *arguments],
        env={**os.environ, "KVMESH_LOG_LEVEL": "debug", "KVMESH_LOG_FORMAT": "json"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ask_everything(http_port, grpc_port):
    """Right and wrong requests with right and wrong keys, over both fronts."""
    url = f"http://127.0.0.1:{http_port}"
    with httpx.Client(base_url=url, trust_env=False, timeout=20) as http:
        for key in (KEYS["tenant"], KEYS["wrong"]):
            headers = {"authorization": f"Bearer {key}", "cookie": OTHERS["header"]}
            for body in (
                {"prompt": OTHERS["prompt"], "max_tokens": 2},
                {"prompt": OTHERS["prompt"], "max_tokens": -1},
                {"prompt": OTHERS["prompt"], "cache_salt": OTHERS["prompt"]},
                {"messages": OTHERS["prompt"]},
            ):
                http.post("/v1/completions", json=body, headers=headers)
                http.post("/v1/chat/completions", json=body, headers={"x-api-key": key})
    with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        stub, fleet = inference_pb2_grpc.InferenceStub(channel), fleet_pb2_grpc.FleetStub(channel)
        wanted = request(OTHERS["prompt"])
        route = inference_pb2.RouteRequest(request=wanted)
        for key in KEYS.values():
            who = (("authorization", f"Bearer {key}"),)
            failing = (*who, ("x-stub", "fail-before=INTERNAL"))
            for method, message, metadata in (
                (_whole(stub.Generate), wanted, who),
                (_whole(stub.Generate), wanted, failing),
                (stub.Route, route, who),
                (fleet.ClearCache, fleet_pb2.ClearCacheRequest(), who),
                (fleet.Explain, fleet_pb2.ExplainRequest(request=wanted), who),
            ):
                with suppress(grpc.RpcError):
                    method(message, metadata=metadata)


def _whole(stream):
    return lambda message, metadata: list(stream(message, metadata=metadata))


def test_no_secret_is_in_the_log(tmp_path, node):
    ports = free_ports("127.0.0.1", 2)
    with start(tmp_path, node, *ports) as process:
        try:
            wait_until_up(ports[0])
            ask_everything(*ports)
        finally:
            process.terminate()
        said = process.communicate(timeout=60)[0]
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [line for line in lines if line["event"] == "request" and line["code"] == "OK"], said
    assert [line for line in lines if line["event"] == "request" and line["code"] != "OK"], said
    for name, secret in {**KEYS, **OTHERS}.items():
        assert secret not in said, name
        assert secret[:12] not in said, name


def wait_until_up(http_port):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{http_port}/health", trust_env=False).is_success:
                return
        time.sleep(0.02)
    raise AssertionError("the router did not find its node")


def test_a_key_of_a_certificate_is_not_in_what_is_said_of_it(tmp_path):
    files = Authority(tmp_path).issue("router")
    secret = files.key.read_text().splitlines()[1]
    files.cert.write_bytes(files.key.read_bytes())
    command = [sys.executable, "-m", "kvmesh.cli", "router", "--node", "127.0.0.1:1"]
    ended = subprocess.run(
        [*command, "--http-port", "0", "--grpc-port", "0",
         "--tls-cert", files.cert, "--tls-key", files.key],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "tls_cert" in ended.stderr
    assert secret not in ended.stderr + ended.stdout

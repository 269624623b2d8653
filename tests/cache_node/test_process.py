"""The node as a process: what it says and how it exits."""

import contextlib
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, generate_pb2

SCRIPT = """
import sys
from pathlib import PosixPath
from kvmesh.log import configure
from cache_node.config import NodeConfig
from cache_node.main import run
configure("node")
sys.exit(run(NodeConfig({arguments})))
"""


@contextlib.contextmanager
def started(**config) -> Iterator[subprocess.Popen[str]]:
    arguments = ", ".join(f"{name}={value!r}" for name, value in config.items())
    command = [sys.executable, "-c", SCRIPT.format(arguments=arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str], event: str) -> dict:
    """Reads log lines up to the first with `event`."""
    for line in process.stderr:
        if line.startswith("{") and (entry := json.loads(line))["event"] == event:
            return entry
    raise AssertionError(f"the process ended without {event!r}")


def test_a_node_that_cannot_start_says_why_and_exits_with_2(smollm2: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            started(model="no-such-model", port=0) as modelless,
            started(kv_cache_bytes=4 << 20, port=0) as small,
            started(port=port) as blocked,
        ):
            wrong = {
                "no-such-model": modelless,
                "max_model_len": small,
                f"127.0.0.1:{port}": blocked,
            }
            for reason, process in wrong.items():
                assert reason in line(process, "cannot_start")["reason"]
                assert process.wait(timeout=30) == 2


def test_a_wrong_certificate_is_named_before_a_model_is_looked_for(tmp_path: Path):
    config = {"tls_cert": tmp_path / "a.pem", "tls_key": tmp_path / "a.key"}
    with started(model="no-such-model", port=0, **config) as process:
        assert "tls_cert: cannot read" in line(process, "cannot_start")["reason"]
        assert process.wait(timeout=30) == 2


@pytest.mark.parametrize(("grace", "whole"), [(30.0, True), (0.2, False)])
def test_sigterm_lets_running_requests_finish_within_the_grace(smollm2: Path, grace, whole):
    sampling = generate_pb2.SamplingParams(
        max_tokens=24 if whole else 2000, ignore_eos=True, temperature=0
    )
    request = pb.NodeGenerateRequest(
        request_id="r", token_ids=pack_tokens([5, 6, 7]), sampling=sampling
    )
    config = {"kv_cache_bytes": 64 << 20, "max_model_len": 2048, "shutdown_grace": grace}
    with started(port=0, **config) as process:
        address = line(process, "ready")["address"]
        with grpc.insecure_channel(address) as channel:
            call = cache_node_pb2_grpc.CacheNodeStub(channel).Generate(request)
            frames = [next(call)]
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(grpc.RpcError):
                frames += call
            assert call.code() is (grpc.StatusCode.OK if whole else grpc.StatusCode.UNAVAILABLE)
        assert (frames[-1].summary.usage.completion_tokens == 24) is whole
        assert process.wait(timeout=30) == 0

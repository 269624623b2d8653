"""The router as a process: what it loads, how it starts, and how it ends."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import grpc
import pytest

from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2_grpc
from router.app import RouterApp
from router.config import RouterConfig
from tests.router.asking import request
from tests.router.fleet_fixture import config, running_fleet
from tests.router.node_process import ROOT, NodeProcess
from tests.router.stub_node import Script, StubNode

HEAVY = ("torch", "transformers", "numpy", "cache_node", "kernels")

CHILD = """
import sys
from kvmesh import log
from router.config import RouterConfig
from router.main import run

log.configure("router")

def ready(app):
    print(app.grpc_port, app.http_port, flush=True)

grace = float(sys.argv[2])
run(RouterConfig(nodes=(sys.argv[1],), http_port=0, grpc_port=0, shutdown_grace=grace), ready)
print("clean", flush=True)
"""


def python(code, *arguments, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=Path("/"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        **options,
    )  # fmt: skip


def test_the_process_loads_neither_torch_nor_the_node():
    code = f"import router.main, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    with python(code) as process:
        out, err = process.communicate(timeout=30)
    assert out.strip() == "[]", err


@pytest.fixture
def node():
    process = NodeProcess("node-0")
    yield process
    process.close()


@contextlib.contextmanager
def router_of(node, grace):
    """A router process; its streams are closed and it is gone afterwards."""
    with python(CHILD, node.address, str(grace)) as process:
        try:
            grpc_port, _http_port = map(int, process.stdout.readline().split())
            with grpc.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
                stub = inference_pb2_grpc.InferenceStub(channel)
                wait_until_up(stub)
                yield process, stub
        finally:
            process.kill()


def wait_until_up(stub):
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        with contextlib.suppress(grpc.RpcError):
            return list(stub.Generate(request(max_tokens=1)))
        time.sleep(0.02)
    raise AssertionError("the router did not find its node")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_running_stream_finish_and_exits_0(node, number):
    with router_of(node, grace=10) as (process, stub):
        slow = (("x-stub", "per_token=0.02"),)
        call = stub.Generate(request(max_tokens=30), metadata=slow)
        next(call)
        process.send_signal(number)
        assert list(call)[-1].HasField("summary")
        out, err = process.communicate(timeout=10)
    assert (process.returncode, out.strip()) == (0, "clean"), err
    assert "Traceback" not in err


def test_after_the_grace_what_still_runs_is_cancelled(node):
    with router_of(node, grace=0.3) as (process, stub):
        endless = (("x-stub", "per_token=0.02"),)
        call = stub.Generate(request(max_tokens=3000), metadata=endless)
        next(call)
        stopped = time.monotonic()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(grpc.RpcError):
            list(call)
        out, err = process.communicate(timeout=10)
        assert time.monotonic() - stopped < 5
    assert (process.returncode, out.strip()) == (0, "clean"), err
    assert "Traceback" not in err


async def test_an_http_stream_finishes_within_the_grace_too():
    async with running_fleet(StubNode(script=Script(per_token=0.02)), shutdown_grace=5) as fleet:
        body = {"prompt": "hi", "max_tokens": 20, "stream": True}
        async with fleet.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(fleet.app.stop())
            rest = [line async for line in lines]
            assert rest[-2:] == ["data: [DONE]", ""]
        await stopping


@pytest.mark.parametrize("port", ["http_port", "grpc_port"])
async def test_a_taken_port_is_named(port):
    first = RouterApp(config("127.0.0.1:1"))
    await first.start()
    second = RouterApp(config("127.0.0.1:1", **{port: getattr(first, port)}))
    with pytest.raises(OSError, match=port):
        await second.start()
    await second.stop()
    await first.stop()


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("nodes", {"nodes": ()}),
        ("nodes", {"nodes": ("a:1", "a:1")}),
        ("policy", {"policy": "best"}),
        ("max_in_flight", {"max_in_flight": 0}),
        ("node_silence", {"node_silence": 0.0}),
        ("header_timeout", {"header_timeout": 0.0}),
        ("body_timeout", {"body_timeout": -1.0}),
        ("max_header_bytes", {"max_header_bytes": 0}),
        ("cors_allow_origins", {"cors_allow_origins": ("app.example.org",)}),
        ("cors_allow_origins", {"cors_allow_origins": ("https://app.example.org/page",)}),
    ],
)
def test_a_wrong_configuration_is_named(field, changes):
    with pytest.raises(ValueError, match=field):
        RouterConfig(**{"nodes": ("a:1",), **changes})


async def test_a_router_that_starts_before_its_nodes_finds_them():
    async with running_fleet(up=0, addresses=("127.0.0.1:1",)) as fleet:
        answer = await fleet.http.post("/v1/completions", json={"prompt": "x"})
        assert answer.status_code == 503
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fleet.inference.Generate(pb.GenerateRequest(text="x")).read()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

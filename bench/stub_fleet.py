"""A router over one stub node, and a bare one beside it, each a process of its own."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SECRET = b"of a benchmark that nobody attacks"
START = 60.0  # seconds at most
MANY = 1 << 16  # requests in flight


@dataclass(frozen=True, slots=True)
class StubFleet:
    router: "StubRouter"
    bare: "StubRouter"  # see BareRouter


@dataclass(frozen=True, slots=True)
class StubRouter:
    pid: int
    target: str  # host:port of its gRPC API


@asynccontextmanager
async def stub_fleet() -> AsyncIterator[StubFleet]:
    """Ends its processes with the context. Raises RuntimeError when they do not start."""
    with TemporaryDirectory() as directory:
        key_file = Path(directory) / "fleet-key"
        key_file.write_bytes(SECRET)
        async with (
            _child(_node) as (_, node_port),
            _child(_router, node_port, key_file) as router,
            _child(_bare_router, node_port) as bare,
        ):
            fleet = StubFleet(_stub_router(*router), _stub_router(*bare))
            await _until_serving(fleet.router.target)
            yield fleet


def _stub_router(process: BaseProcess, port: int) -> StubRouter:
    assert process.pid is not None
    return StubRouter(process.pid, f"127.0.0.1:{port}")


@asynccontextmanager
async def _child(
    main: Callable[..., None], *arguments: object
) -> AsyncIterator[tuple[BaseProcess, int]]:
    """A process that sends its port through a pipe, and ends when the pipe does."""
    context = get_context("spawn")  # threads of gRPC do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        if not await asyncio.to_thread(ours.poll, START):
            raise RuntimeError(f"a process did not start within {START:g} s")
        yield process, ours.recv()
    except EOFError as error:
        raise RuntimeError("a process ended before it was ready") from error
    finally:
        ours.close()
        process.terminate()
        await asyncio.to_thread(process.join, 10)
        process.kill()


async def _until_serving(target: str) -> None:
    async with grpc.aio.insecure_channel(target) as channel, asyncio.timeout(START):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        async for health in stub.Watch(request):  # type: ignore[attr-defined]
            if health.status == health_pb2.HealthCheckResponse.SERVING:
                return


def _node(pipe: Connection) -> None:
    from bench.stub_node import StubNode

    async def serve() -> None:
        node = StubNode(SECRET)
        pipe.send(await node.start())
        await asyncio.Event().wait()

    _quietly(lambda: asyncio.run(serve()))


def _bare_router(pipe: Connection, node_port: int) -> None:
    import uvloop

    from bench.bare_router import BareRouter

    async def serve() -> None:
        pipe.send(await BareRouter(f"127.0.0.1:{node_port}").start())
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def _router(pipe: Connection, node_port: int, key_file: Path) -> None:
    from router.config import RouterConfig
    from router.main import run

    config = RouterConfig(
        nodes=(f"127.0.0.1:{node_port}",),
        http_port=0,
        grpc_port=0,
        max_in_flight=MANY,
        fleet_key_file=key_file,
        shutdown_grace=0.1,
    )
    _quietly(lambda: run(config, lambda app: pipe.send(app.grpc_port)))


def _quietly(serve: Callable[[], None]) -> None:
    os.environ["KVMESH_LOG_LEVEL"] = "error"
    from kvmesh.log import configure

    configure("bench")
    serve()

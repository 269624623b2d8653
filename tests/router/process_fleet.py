"""Routers as processes of their own, started by the command that operators use."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import grpc
import httpx

from kvmesh.cli.child import Child
from kvmesh.v1 import (
    cache_node_pb2,
    cache_node_pb2_grpc,
    fleet_pb2,
    fleet_pb2_grpc,
    inference_pb2_grpc,
)
from tests.router.admission_fixture import metric

START = 120.0  # seconds: a busy machine is slow
UP = fleet_pb2.NODE_HEALTH_UP


class RouterProcess:
    """`start`, then `stop` once. In calls of the fixtures it stands for a fleet."""

    def __init__(self, name: str, nodes: Sequence[str], **flags: object) -> None:
        """`flags` are those of `kvmesh router`."""
        flags = {"http_port": 0, "grpc_port": 0, "shutdown_grace": 0.2, **flags}
        words = [word for node in nodes for word in ("--node", node)]
        for flag, value in flags.items():
            words += [f"--{flag.replace('_', '-')}", str(value)]
        self._child = Child(name, ["router", *words], lambda _child, line: self._keep(line.text))
        self.log: list[str] = []

    def _keep(self, text: str) -> None:
        self.log.append(text)

    async def start(self) -> "RouterProcess":
        await self._child.start()
        await asyncio.wait_for(self._child.until_ready(), START)
        own = ("grpc.use_local_subchannel_pool", 1)
        self.channel = grpc.aio.insecure_channel(self._child.ready["grpc"], options=(own,))
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.fleet = fleet_pb2_grpc.FleetStub(self.channel)
        self.target = self._child.ready["grpc"]
        self.http = httpx.AsyncClient(
            base_url=self._child.ready["http"], timeout=20, trust_env=False
        )
        return self

    async def stop(self) -> None:
        self.signal(signal.SIGCONT)
        await self.http.aclose()
        await self.channel.close()
        await self._child.stop(5.0)

    def signal(self, number: int) -> None:
        if self._child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    async def nodes(self) -> dict[str, fleet_pb2.NodeStatus]:
        """By name, or by address as long as a node has not told its name."""
        reply = await self.fleet.ListNodes(fleet_pb2.ListNodesRequest(), timeout=20)
        return {node.name: node for node in reply.nodes}

    async def up(self, *names: str) -> bool:
        """Whether these nodes take requests."""
        nodes = await self.nodes()
        return all(name in nodes and nodes[name].health == UP for name in names)

    async def mode(self, node: str) -> str:
        """Of the index, as the metric shows it."""
        text = (await self.http.get("/metrics")).text
        lines = [each for each in text.splitlines() if f'node="{node}"' in each]
        (mode,) = re.findall(r'router_index_mode{.*mode="(\w+)"', "\n".join(lines))
        return str(mode)

    async def in_flight(self) -> float:
        """As it says itself: what it has admitted, and what it has on its nodes."""
        nodes = (await self.nodes()).values()
        counts = [each.in_flight for each in nodes]
        assert max(counts) < 1 << 31, "below zero"
        return sum(counts) + await metric(self, "requests_in_flight")


@asynccontextmanager
async def router_processes(count: int, nodes: Sequence[str], **flags: object):
    """So many, each over all `nodes`."""
    routers = [RouterProcess(f"router-{place}", nodes, **flags) for place in range(count)]
    try:
        await asyncio.gather(*(router.start() for router in routers))
        yield routers
    finally:
        for router in routers:
            await router.stop()


async def requests_on(address: str) -> int:
    """As the node says that it has."""
    return (await checked(address)).requests


async def checked(address: str) -> cache_node_pb2.CheckIntegrityResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = cache_node_pb2_grpc.CacheNodeStub(channel)
        return await stub.CheckIntegrity(cache_node_pb2.CheckIntegrityRequest(), timeout=20)


async def until(condition: Callable[[], Awaitable[object]], seconds: float = 10.0) -> None:
    """Asks until `condition` says yes; AssertionError when it does not within so many seconds."""
    end = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.005)

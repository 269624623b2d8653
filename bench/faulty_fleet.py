"""A router and nodes in processes of their own, and the ways in which nodes of it fail."""

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
from google.protobuf import duration_pb2

from bench.cut_proxy import CutProxy
from cache_node.config import NodeConfig
from kvmesh.cli.child import Child, LogLine
from kvmesh.cli.flags import as_arguments
from kvmesh.cli.node_flags import NODE_FLAGS
from kvmesh.cli.ports import free_ports
from kvmesh.cli.router_flags import ROUTER_FLAGS
from kvmesh.cli.watch import UpWatch
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, fleet_pb2, fleet_pb2_grpc
from router.config import RouterConfig

START, STOP = 600.0, 15.0  # seconds at most: a busy machine may stand still for minutes
LONGEST_FREEZE = 8.0  # seconds
DRAIN = 1.0  # seconds for streams to end, then they move

NODE = {
    "device": "cpu",
    "dtype": "float32",  # so that failover changes no token
    "num_blocks": 400,
    "max_model_len": 512,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "shutdown_grace": 0.5,
}
ROUTER = {"stream_silence": 4.0, "slow_start": 3.0, "resume_timeout": 20.0, "shutdown_grace": 1.0}


class FaultyFleet:
    """Between router and nodes lie connections that can be cut. Owns all processes.

    A fault waits until its node is back, apart from `cut`, which the watcher mends by itself.
    """

    def __init__(self, model: Path, nodes: int, draw: random.Random) -> None:
        self._draw = draw
        self._model = model
        http, grpc_port, *ports = free_ports("127.0.0.1", 2 + nodes)
        self.http_url = f"http://127.0.0.1:{http}"
        self.target = f"127.0.0.1:{grpc_port}"
        self.log: list[str] = []  # of all processes
        self._ports = ports
        self._http, self._grpc = http, grpc_port
        self.proxies = [CutProxy(port) for port in ports]
        self._nodes = [self._node(place, port) for place, port in enumerate(ports)]
        self._router: Child | None = None
        self._watch = UpWatch()
        self._busy: set[int] = set()  # places of nodes that are on their way back
        self.faults: dict[str, Callable[[int], Awaitable[None]]] = {
            "killed": self.kill,
            "frozen": self.freeze,
            "cut off": self.cut,
            "stopped": self.stop,
            "drained": self.drain,
        }

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultyFleet"]:
        """Up on entry; no process is left on exit."""
        try:
            for proxy in self.proxies:
                await proxy.start()
            for node in self._nodes:
                await node.start()
            await asyncio.wait_for(asyncio.gather(*(n.until_ready() for n in self._nodes)), START)
            self._router = self._make_router()
            await self._router.start()
            await self.until_up()
            yield self
        finally:
            for child in ([] if self._router is None else [self._router]) + self._nodes:
                self._signal(child, signal.SIGCONT)
                await child.stop(STOP)
            for proxy in self.proxies:
                await proxy.stop()

    async def strike(self) -> str:
        """Something happens to a node that is well; what, once it is over."""
        well = [place for place in range(len(self._nodes)) if place not in self._busy]
        if not well:
            return "spared"
        place, kind = self._draw.choice(well), self._draw.choice(sorted(self.faults))
        self._busy.add(place)
        try:
            await self.faults[kind](place)
        finally:
            self._busy.discard(place)
        return kind

    async def replace(self, place: int, **changes: object) -> None:
        """Another node takes the place of one, with other fields of NodeConfig."""
        await self._nodes[place].stop(STOP)
        self._nodes[place] = self._node(place, self._ports[place], **changes)
        await self._nodes[place].start()
        await asyncio.wait_for(self._nodes[place].until_ready(), START)

    async def until_up(self) -> None:
        """Waits until all nodes take requests again."""
        await self._watch.until(len(self._nodes))

    async def checked(self) -> list[pb.CheckIntegrityResponse]:
        """What each node says of itself."""
        reports = []
        for port in self._ports:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = cache_node_pb2_grpc.CacheNodeStub(channel)
                reports.append(await stub.CheckIntegrity(pb.CheckIntegrityRequest()))
        return reports

    async def kill(self, place: int) -> None:
        self._nodes[place].kill()
        await self._start_again(place)

    async def stop(self, place: int) -> None:
        await self._nodes[place].stop(STOP)
        await self._start_again(place)

    async def freeze(self, place: int) -> None:
        await self.freeze_for(place, self._draw.uniform(0.2, LONGEST_FREEZE))

    async def freeze_for(self, place: int, seconds: float) -> None:
        self._signal(self._nodes[place], signal.SIGSTOP)
        await asyncio.sleep(seconds)
        self._signal(self._nodes[place], signal.SIGCONT)

    async def cut(self, place: int) -> None:
        self.proxies[place].cut()

    async def drain(self, place: int) -> None:
        timeout = duration_pb2.Duration(nanos=int(DRAIN * 1e9) % 10**9, seconds=int(DRAIN))
        async with grpc.aio.insecure_channel(self.target) as channel:
            stub = fleet_pb2_grpc.FleetStub(channel)
            name = f"node-{place}"
            with suppress(grpc.aio.AioRpcError):  # it may be silent just now
                await stub.Drain(fleet_pb2.FleetDrainRequest(node=name, timeout=timeout, move=True))
                await stub.Drain(fleet_pb2.FleetDrainRequest(node=name, resume=True))

    async def _start_again(self, place: int) -> None:
        node = self._nodes[place]
        await node.wait()
        await node.start()
        await asyncio.wait_for(node.until_ready(), START)

    def _node(self, place: int, port: int, **changes: object) -> Child:
        fields = {**NODE, "model": str(self._model), "node_name": f"node-{place}", "port": port}
        config = NodeConfig(**{**fields, **changes})  # type: ignore[arg-type]
        return Child(config.node_name, ["node", *as_arguments(config, NODE_FLAGS)], self._keep)

    def _make_router(self) -> Child:
        config = RouterConfig(
            nodes=tuple(f"127.0.0.1:{proxy.port}" for proxy in self.proxies),
            http_port=self._http,
            grpc_port=self._grpc,
            **ROUTER,  # type: ignore[arg-type]
        )
        return Child("router", ["router", *as_arguments(config, ROUTER_FLAGS)], self._keep)

    def _keep(self, child: Child, line: LogLine) -> None:
        if child is self._router:
            self._watch.take(line)
        if line.event != "progress":
            self.log.append(f"{child.name}: {line.text}")

    @staticmethod
    def _signal(child: Child, number: int) -> None:
        if child.running and child.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(child.pid, number)

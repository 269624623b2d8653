"""A router over stub nodes on real sockets, for tests."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import grpc
import httpx

from kvmesh.v1 import fleet_pb2_grpc, inference_pb2_grpc
from router.app import RouterApp
from router.config import RouterConfig
from tests.router.stub_node import StubNode


async def eventually(condition: Callable[[], object], within: float = 2.0) -> None:
    """Polls until `condition()` holds; AssertionError when it does not within so many seconds."""
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        await asyncio.sleep(0.005)


class RunningFleet:
    """A started router, its nodes, and clients of both fronts."""

    def __init__(self, app: RouterApp, nodes: list[StubNode]) -> None:
        self.app = app
        self.nodes = nodes
        self.http_url = f"http://127.0.0.1:{app.http_port}"
        self.target = f"127.0.0.1:{app.grpc_port}"
        self.channel = grpc.aio.insecure_channel(
            self.target,
            options=(
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.max_send_message_length", 64 << 20),
                ("grpc.http2.bdp_probe", 0),
            ),
        )
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.fleet = fleet_pb2_grpc.FleetStub(self.channel)
        self.http = httpx.AsyncClient(base_url=self.http_url, timeout=20, trust_env=False)

    @property
    def idle(self) -> bool:
        """Nothing is held anywhere."""
        return (
            self.app.ledger.idle
            and self.app.admission.in_flight == 0
            and not any(node.running for node in self.nodes)
        )

    @property
    def quiet(self) -> bool:
        """The router has heard from all nodes that they have finished what it sent them."""
        heard = {status.address: status.load for status in self.app.view.nodes()}
        return self.idle and all(
            heard[node.address].running == 0
            and heard[node.address].last_dispatch_sequence
            == max(node.last_sequence.values(), default=0)
            for node in self.nodes
        )

    def health(self, place: int) -> str:
        from kvmesh.v1 import fleet_pb2

        return fleet_pb2.NodeHealth.Name(self.app.view.nodes()[place].health)

    def breaker(self, place: int) -> str:
        return self.app._registry.nodes[place].breaker.state.value

    async def close(self) -> None:
        await self.http.aclose()
        await self.channel.close()
        await self.app.stop()
        for node in self.nodes:
            await node.stop()


def config(*addresses: str, **changes: object) -> RouterConfig:
    defaults = {"http_port": 0, "grpc_port": 0, "shutdown_grace": 0.2}
    return RouterConfig(nodes=addresses, **{**defaults, **changes})


@contextlib.asynccontextmanager
async def running_fleet(
    *nodes: StubNode, up: int | None = None, addresses: tuple[str, ...] = (), **changes: object
) -> AsyncIterator[RunningFleet]:
    """Starts `nodes` and a router; waits until `up` of them (all) take requests."""
    for node in nodes:
        if not node.port:
            await node.start()
    app = RouterApp(config(*addresses, *(node.address for node in nodes), **changes))
    await app.start()
    fleet = RunningFleet(app, list(nodes))
    try:
        wanted = len(nodes) if up is None else up
        await eventually(lambda: sum(n.health == 2 for n in app.view.nodes()) >= wanted, 5)
        yield fleet
    finally:
        await fleet.close()

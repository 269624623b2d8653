"""CPU time of the router's process for what passes through it: messages, requests, leases."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import grpc

from bench.figures import Goal, Spread
from bench.stub_fleet import StubFleet, stub_fleet
from bench.usage import cpu_seconds
from kvmesh.lease import METADATA
from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2_grpc, inference_pb2, inference_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

STREAMS, SHORT, LONG = 64, 8, 108  # streams at once, messages of each
LEASES, LEASES_AT_ONCE = 1000, 16
PROMPT = 1024  # tokens
WARM = 128  # requests and leases that are not measured
MESSAGE_GOAL, LEASE_GOAL = 60.0, 250.0  # µs


@dataclass(frozen=True, slots=True)
class ProxyCost:
    """µs of CPU time of the whole process, its idle work taken off."""

    message: Spread
    request: Spread  # beside its messages
    lease: Spread  # from Route until the node has told of its end

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("a proxied message, µs", self.message.least, MESSAGE_GOAL),
            Goal("a lease, µs", self.lease.least, LEASE_GOAL),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "message": self.message.as_json(),
            "request": self.request.as_json(),
            "lease": self.lease.as_json(),
        }


def measure_proxy_cost(rounds: int) -> ProxyCost:
    """Raises RuntimeError when the processes do not start."""
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> ProxyCost:
    async with stub_fleet() as fleet, grpc.aio.insecure_channel(fleet.target) as channel:
        load = _Load(fleet, channel)
        await load.streams(WARM, SHORT)
        await load.leases(WARM)
        idle = await load.idle()
        messages, requests, leases = [], [], []
        for _ in range(rounds):
            short = await load.cpu(lambda: load.streams(STREAMS, SHORT), idle)
            long = await load.cpu(lambda: load.streams(STREAMS, LONG), idle)
            message = (long - short) / (STREAMS * (LONG - SHORT))
            messages.append(message)
            requests.append(short / STREAMS - SHORT * message)
            leases.append(await load.cpu(lambda: load.leases(LEASES), idle) / LEASES)
        await load.close()
        spreads = (Spread.of(1e6 * each for each in part) for part in (messages, requests, leases))
        return ProxyCost(*spreads)


class _Load:
    """A client that does not look at what it gets."""

    def __init__(self, fleet: StubFleet, channel: grpc.aio.Channel) -> None:
        self._pid = fleet.router_pid
        self._generate: grpc.aio.UnaryStreamMultiCallable[pb.GenerateRequest, bytes]
        self._generate = channel.unary_stream(
            "/kvmesh.v1.Inference/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=None,
        )
        self._router: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(
            channel
        )
        self._nodes: dict[str, grpc.aio.Channel] = {}
        self._made = 0

    async def cpu(self, work: Callable[[], Awaitable[None]], idle: float) -> float:
        """Seconds of the router's CPU time that `work` takes, `idle` of it a second apart."""
        before, start = cpu_seconds(self._pid), time.monotonic()
        await work()
        return cpu_seconds(self._pid) - before - idle * (time.monotonic() - start)

    async def idle(self, seconds: float = 2.0) -> float:
        """CPU seconds a second of a router that nobody asks."""
        return await self.cpu(lambda: asyncio.sleep(seconds), 0.0) / seconds

    async def streams(self, count: int, messages: int) -> None:
        await asyncio.gather(*(self._stream(messages) for _ in range(count)))

    async def leases(self, count: int) -> None:
        for start in range(0, count, LEASES_AT_ONCE):
            most = min(LEASES_AT_ONCE, count - start)
            await asyncio.gather(*(self._lease() for _ in range(most)))

    async def close(self) -> None:
        for channel in self._nodes.values():
            await channel.close()

    async def _stream(self, messages: int) -> None:
        call = self._generate(self._request(messages))
        while await call.read() is not grpc.aio.EOF:
            pass

    async def _lease(self) -> None:
        """Claims it as clients do."""
        wanted = inference_pb2.RouteRequest(request=self._request(1))
        route = await self._router.Route(wanted)
        if route.address not in self._nodes:
            self._nodes[route.address] = grpc.aio.insecure_channel(route.address)
        node: cache_node_pb2_grpc.CacheNodeAsyncStub = cache_node_pb2_grpc.CacheNodeStub(
            self._nodes[route.address]
        )
        async for _ in node.Generate(route.dispatch, metadata=((METADATA, route.lease),)):
            pass

    def _request(self, messages: int) -> pb.GenerateRequest:
        self._made += 1
        tokens = [(self._made + place) % 997 for place in range(PROMPT)]
        return pb.GenerateRequest(
            token_ids=pack_tokens(tokens), sampling=pb.SamplingParams(max_tokens=messages)
        )

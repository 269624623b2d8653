"""CPU time of the router's process for what passes through it: messages, requests, leases."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

import grpc

from bench.figures import Goal, Spread
from bench.stub_fleet import StubRouter, stub_fleet
from bench.usage import cpu_seconds
from kvmesh.lease import METADATA
from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2_grpc, inference_pb2, inference_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

STREAMS, SHORT, LONG = 64, 8, 108  # streams at once, messages of each
LEASES, LEASES_AT_ONCE = 1024, 64
PROMPT = 1024  # tokens
WARM = 128  # requests and leases that are not measured
MESSAGE_GOAL, LEASE_GOAL = 60.0, 250.0  # µs


@dataclass(frozen=True, slots=True)
class Passing:
    """µs of CPU time of the whole process, its idle work taken off."""

    message: Spread
    request: Spread  # beside its messages
    lease: Spread  # from Route until the node has told of its end

    def as_json(self) -> dict[str, object]:
        return {
            "message": self.message.as_json(),
            "request": self.request.as_json(),
            "lease": self.lease.as_json(),
        }


@dataclass(frozen=True, slots=True)
class ProxyCost:
    """`bare` is what grpc.aio takes of it: of the same calls with nothing done in them, measured in
    turns with the router's. A bare lease is the call alone, no node tells of its end.
    """

    router: Passing
    bare: Passing

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("a proxied message, µs", self.router.message.least, MESSAGE_GOAL),
            Goal("a lease, µs", self.router.lease.least, LEASE_GOAL),
        ]

    def as_json(self) -> dict[str, object]:
        return {**self.router.as_json(), "bare": self.bare.as_json()}


def measure_proxy_cost(rounds: int) -> ProxyCost:
    """Raises RuntimeError when the processes do not start."""
    return asyncio.run(_measure(rounds))


async def _measure(rounds: int) -> ProxyCost:
    async with stub_fleet() as fleet, AsyncExitStack() as opened:
        loads = [
            await opened.enter_async_context(Load(router)) for router in (fleet.router, fleet.bare)
        ]
        costs: tuple[list[_Round], list[_Round]] = [], []
        for load in loads:
            await load.warm_up()
        for _ in range(rounds):
            for load, passed in zip(loads, costs, strict=True):
                passed.append(await load.round())
        router, bare = (_passing(each) for each in costs)
        return ProxyCost(router, bare)


_Round = tuple[float, float, float]
"""Seconds for a message, a request beside its messages, and a lease."""


def _passing(rounds: list[_Round]) -> Passing:
    return Passing(*(Spread.of(1e6 * each for each in part) for part in zip(*rounds, strict=True)))


class Load:
    """A client that does not look at what it gets. Closes its channels when its block is left."""

    def __init__(self, router: StubRouter) -> None:
        self._pid = router.pid
        self._channel = grpc.aio.insecure_channel(router.target)
        self._generate: grpc.aio.UnaryStreamMultiCallable[pb.GenerateRequest, bytes]
        self._generate = self._channel.unary_stream(
            "/kvmesh.v1.Inference/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=None,
        )
        self._router: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(
            self._channel
        )
        self._nodes: dict[str, grpc.aio.Channel] = {}
        self._made = 0
        self._idle = 0.0  # CPU seconds a second of a router that nobody asks

    async def __aenter__(self) -> "Load":
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in (self._channel, *self._nodes.values()):
            await channel.close()

    async def warm_up(self, seconds: float = 2.0) -> None:
        await self.streams(WARM, SHORT)
        await self.leases(WARM)
        self._idle = await self.cpu(lambda: asyncio.sleep(seconds)) / seconds

    async def round(self) -> _Round:
        short = await self.cpu(lambda: self.streams(STREAMS, SHORT))
        long = await self.cpu(lambda: self.streams(STREAMS, LONG))
        message = (long - short) / (STREAMS * (LONG - SHORT))
        lease = await self.cpu(lambda: self.leases(LEASES)) / LEASES
        return message, short / STREAMS - SHORT * message, lease

    async def cpu(self, work: Callable[[], Awaitable[None]]) -> float:
        """Seconds of the router's CPU time that `work` takes, what it takes idle apart."""
        before, start = cpu_seconds(self._pid), time.monotonic()
        await work()
        return cpu_seconds(self._pid) - before - self._idle * (time.monotonic() - start)

    async def streams(self, count: int, messages: int) -> None:
        await asyncio.gather(*(self._stream(messages) for _ in range(count)))

    async def leases(self, count: int) -> None:
        for start in range(0, count, LEASES_AT_ONCE):
            most = min(LEASES_AT_ONCE, count - start)
            await asyncio.gather(*(self._lease() for _ in range(most)))

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
        metadata = ((METADATA, route.lease),) if route.lease else ()
        async for _ in node.Generate(route.dispatch, metadata=metadata):
            pass

    def _request(self, messages: int) -> pb.GenerateRequest:
        self._made += 1
        tokens = [(self._made + place) % 997 for place in range(PROMPT)]
        return pb.GenerateRequest(
            token_ids=pack_tokens(tokens), sampling=pb.SamplingParams(max_tokens=messages)
        )

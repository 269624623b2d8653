"""CPU time of the router's process for what passes through it: messages, requests, leases."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, fields
from statistics import mean
from typing import Any, cast

import grpc

from bench.figures import Goal, Spread
from bench.stub_fleet import StubRouter, stub_fleet
from bench.usage import cpu_seconds
from kvmesh.lease import METADATA
from kvmesh.packing import pack_tokens
from kvmesh.route_stream import RouteStreams
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
    route: Spread  # a lease, from Route until the node has told of its end
    lease: Spread  # the same from RouteStream, LEASES_AT_ONCE that begin together, as for `route`
    steady: Spread  # the same, when each that ends is followed by the next at once

    def as_json(self) -> dict[str, object]:
        return {each.name: getattr(self, each.name).as_json() for each in fields(self)}


@dataclass(frozen=True, slots=True)
class ProxyCost:
    """`bare` is what grpc.aio takes of it: of the same calls with nothing done in them, measured in
    turns with the router's. A bare lease is the call alone, no node tells of its end.
    """

    router: Passing
    bare: Passing
    together: float  # leases in a message of the stream, of those that begin together, in the mean
    apart: float  # of those that follow each other

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("a proxied message, µs", self.router.message.least, MESSAGE_GOAL),
            Goal("a lease, µs", self.router.lease.least, LEASE_GOAL),
            Goal(
                "a lease of many that follow each other, µs", self.router.steady.least, LEASE_GOAL
            ),
        ]

    def as_json(self) -> dict[str, object]:
        batches = {"together": self.together, "apart": self.apart}
        return {**self.router.as_json(), "bare": self.bare.as_json(), "leases_a_message": batches}


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
        return ProxyCost(router, bare, *loads[0].leases_a_message)


_Round = tuple[float, float, float, float, float]
"""Seconds for the fields of Passing."""


def _passing(rounds: list[_Round]) -> Passing:
    return Passing(*(Spread.of(1e6 * each for each in part) for part in zip(*rounds, strict=True)))


class Load:
    """A client that does not look at what it gets. Closes its channels when its block is left.

    Its streams of routes are those of kvmesh.client.
    """

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
        self._threaded = grpc.insecure_channel(router.target)
        self.messages = _CountedMessages(inference_pb2_grpc.InferenceStub(self._threaded))
        self._streams = RouteStreams(cast(inference_pb2_grpc.InferenceStub, self.messages), ())
        self._batches: tuple[list[float], list[float]] = [], []  # together, apart
        self._nodes: dict[str, grpc.aio.Channel] = {}
        self._made = 0
        self._idle = 0.0  # CPU seconds a second of a router that nobody asks

    async def __aenter__(self) -> "Load":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._streams.close()
        self._threaded.close()
        for channel in (self._channel, *self._nodes.values()):
            await channel.close()

    @property
    def leases_a_message(self) -> tuple[float, float]:
        """In the mean, of the rounds so far: of those that began together, and of the others."""
        together, apart = self._batches
        return mean(together), mean(apart)

    async def warm_up(self, seconds: float = 2.0) -> None:
        await self.streams(WARM, SHORT)
        await self.leases(WARM, self.route)
        await self.leases(WARM, self.route_on_stream)
        self._idle = await self.cpu(lambda: asyncio.sleep(seconds)) / seconds

    async def round(self) -> _Round:
        short = await self.cpu(lambda: self.streams(STREAMS, SHORT))
        long = await self.cpu(lambda: self.streams(STREAMS, LONG))
        message = (long - short) / (STREAMS * (LONG - SHORT))
        route = await self.cpu(lambda: self.leases(LEASES, self.route)) / LEASES
        together, apart = self._batches
        with self.messages.counted(together):
            lease = await self.cpu(lambda: self.leases(LEASES, self.route_on_stream)) / LEASES
        with self.messages.counted(apart):
            steady = await self.cpu(lambda: self.steady_leases(LEASES)) / LEASES
        return message, short / STREAMS - SHORT * message, route, lease, steady

    async def cpu(self, work: Callable[[], Awaitable[None]]) -> float:
        """Seconds of the router's CPU time that `work` takes, what it takes idle apart."""
        before, start = cpu_seconds(self._pid), time.monotonic()
        await work()
        return cpu_seconds(self._pid) - before - self._idle * (time.monotonic() - start)

    async def streams(self, count: int, messages: int) -> None:
        await asyncio.gather(*(self._stream(messages) for _ in range(count)))

    async def leases(self, count: int, ask: "_Ask") -> None:
        """LEASES_AT_ONCE that begin together, and when all have ended the next."""
        for start in range(0, count, LEASES_AT_ONCE):
            most = min(LEASES_AT_ONCE, count - start)
            await asyncio.gather(*(self._lease(ask) for _ in range(most)))

    async def steady_leases(self, count: int) -> None:
        """LEASES_AT_ONCE, each followed by another when it has ended; on a stream."""
        numbers = iter(range(count))

        async def follow() -> None:
            for _ in numbers:
                await self._lease(self.route_on_stream)

        await asyncio.gather(*(follow() for _ in range(LEASES_AT_ONCE)))

    async def _stream(self, messages: int) -> None:
        call = self._generate(self._request(messages))
        while await call.read() is not grpc.aio.EOF:
            pass

    async def route(self, wanted: inference_pb2.RouteRequest) -> inference_pb2.RouteResponse:
        return await self._router.Route(wanted)

    async def route_on_stream(
        self, wanted: inference_pb2.RouteRequest
    ) -> inference_pb2.RouteResponse:
        return await asyncio.wrap_future(self._streams.ask(wanted, None))

    async def _lease(self, ask: "_Ask") -> None:
        """Claims it as clients do."""
        route = await ask(inference_pb2.RouteRequest(request=self._request(1)))
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


_Ask = Callable[[inference_pb2.RouteRequest], Awaitable[inference_pb2.RouteResponse]]


class _CountedMessages:
    """A router's stub that counts what its streams carry."""

    def __init__(self, router: inference_pb2_grpc.InferenceStub) -> None:
        self._router = router
        self._messages = self._leases = 0
        self._call: Any = None

    def RouteStream(  # noqa: N802
        self, orders: Iterator[inference_pb2.RouteOrders], **options: Any
    ) -> "_CountedMessages":
        self._call = self._router.RouteStream(orders, **options)
        return self

    def __iter__(self) -> Iterator[inference_pb2.RouteReplies]:
        for message in self._call:
            self._messages += 1
            self._leases += len(message.replies)
            yield message

    def cancel(self) -> None:
        self._call.cancel()

    @contextmanager
    def counted(self, into: list[float]) -> Iterator[None]:
        """Adds the mean of leases in a message inside the block."""
        messages, leases = self._messages, self._leases
        yield
        into.append((self._leases - leases) / (self._messages - messages))

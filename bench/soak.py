"""Thousands of requests with all kinds of ends on a live node, and what is left of them.

A tiny random model, a small pool and a smaller CPU pool: requests share prefixes, wait, fork, are
preempted and swapped, and a large part of them is left at a random moment in one way or another.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from bench.figures import Goal
from bench.random_model import write_random_model
from bench.requests import random_prompt
from bench.watched_node import Holdings, WatchedNode, watched_node
from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, generate_pb2

USERS = 16  # requests at once
WARM_UP = 2_000  # requests before the first look: caches and allocators have their size then
GROWTH_GOAL = 1024.0  # bytes a request
MOMENT = 0.06  # seconds within which a client loses patience
SETTLE = 10.0  # seconds for the last request to be gone

NODE = {
    "dtype": "float32",
    "num_blocks": 120,
    "max_model_len": 512,
    "swap_space": 0.001,  # GiB
    "preemption_mode": "auto",
    "max_num_seqs": 12,
    "max_num_batched_tokens": 64,
    "shutdown_grace": 1.0,
}


@dataclass(frozen=True, slots=True)
class Soak:
    """What the node held after the warm-up and at the end, both times with no request open."""

    requests: int
    seconds: float
    ends: dict[str, int]  # requests, by how they ended
    before: Holdings
    after: Holdings
    held_blocks: int
    violations: tuple[str, ...]

    @property
    def growth(self) -> float:
        """Bytes of resident memory a request after the warm-up."""
        return (self.after.resident - self.before.resident) / (self.requests - WARM_UP)

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("blocks held", self.held_blocks, 0),
            Goal("broken invariants", len(self.violations), 0),
            Goal("tasks left", self.after.tasks - self.before.tasks, 0),
            Goal("threads left", self.after.threads - self.before.threads, 0),
            Goal("descriptors left", self.after.descriptors - self.before.descriptors, 0),
            Goal("bytes grown a request", self.growth, GROWTH_GOAL),
        ]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "growth": self.growth}


def soak(requests: int, tokenizer: Path, seed: int = 0) -> Soak:
    """Sends so many requests after a warm-up of 2,000 that count among them. `tokenizer` is the
    directory of a model that has one.

    Raises ValueError when nothing is left after the warm-up.
    """
    if requests <= WARM_UP:
        raise ValueError(f"requests: must be above the warm-up of {WARM_UP}, is {requests}")
    with TemporaryDirectory() as directory:
        model = write_random_model(Path(directory), tokenizer)
        return asyncio.run(_soak(model, requests, seed))


async def _soak(model: Path, requests: int, seed: int) -> Soak:
    async with watched_node(model, **NODE) as node, _channel(node) as channel:
        crowd = _Crowd(channel, seed)
        # A router watches a node as long as it lives, so the watch is there before the first look.
        watch = asyncio.create_task(crowd.watch())
        await crowd.send(WARM_UP)
        await crowd.settled()
        before = await node.holdings()
        started = time.perf_counter()
        await crowd.send(requests - WARM_UP)
        seconds = time.perf_counter() - started
        report = await crowd.settled()
        after = await _at_rest(node, before)
        watch.cancel()
        return Soak(
            requests,
            seconds,
            dict(crowd.ends),
            before,
            after,
            report.held_blocks,
            tuple(report.violations),
        )


async def _at_rest(node: WatchedNode, before: Holdings) -> Holdings:
    """What it holds once handlers have ended, which they do after the requests that they served; or
    what is left after a while.
    """
    deadline = time.monotonic() + SETTLE
    while True:
        found = await node.holdings()
        if found.tasks <= before.tasks or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.05)


@asynccontextmanager
async def _channel(node: WatchedNode) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel:
        yield channel


class _Crowd:
    """Users who send request after request, each with a fate of its own."""

    def __init__(self, channel: grpc.aio.Channel, seed: int) -> None:
        self.ends: Counter[str] = Counter()
        self._stub = cache_node_pb2_grpc.CacheNodeStub(channel)
        self._draw = random.Random(seed)
        self._names = count()
        self._prefixes = [random_prompt(self._draw, 64) for _ in range(8)]
        self._fates: list[tuple[str, Callable[[str], Awaitable[None]]]] = [
            ("read to the end", self._read),
            ("read to the end", self._read),
            ("cancelled", self._cancel),
            ("aborted", self._abort),
            ("timed out", self._time_out),
            ("left unread", self._leave_unread),
        ]

    async def send(self, requests: int) -> None:
        left = iter(range(requests))

        async def user() -> None:
            for _ in left:
                fate, act = self._draw.choice(self._fates)
                name = f"r{next(self._names)}"
                try:
                    await act(name)
                except grpc.aio.AioRpcError as error:
                    fate = f"{fate}: {error.code().name}"
                self.ends[fate] += 1

        await asyncio.gather(*(user() for _ in range(USERS)))

    async def settled(self) -> pb.CheckIntegrityResponse:
        """What the node says of itself once no request is open, or after a while."""
        deadline = time.monotonic() + SETTLE
        while True:
            report = await self._stub.CheckIntegrity(pb.CheckIntegrityRequest())
            quiet = report.requests == 0 and report.held_blocks == 0
            if quiet or time.monotonic() > deadline:
                return report
            await asyncio.sleep(0.05)

    async def watch(self) -> None:
        """Reads the node's state for ever, as a router does."""
        async for _ in self._stub.WatchState(pb.WatchStateRequest(include_events=True)):
            pass

    async def _read(self, name: str) -> None:
        async for _ in self._call(name):
            pass

    async def _cancel(self, name: str) -> None:
        call = self._call(name)
        reader = asyncio.create_task(_drain(call))
        await self._moment()
        call.cancel()
        await reader

    async def _abort(self, name: str) -> None:
        reader = asyncio.create_task(_drain(self._call(name)))
        await self._moment()
        await self._stub.Abort(pb.AbortRequest(request_id=name))
        await reader

    async def _time_out(self, name: str) -> None:
        await _drain(self._call(name, timeout=self._draw.uniform(0.001, MOMENT)))

    async def _leave_unread(self, name: str) -> None:
        call = self._call(name)
        await self._moment()
        call.cancel()

    async def _moment(self) -> None:
        await asyncio.sleep(self._draw.uniform(0, MOMENT))

    def _call(
        self, name: str, timeout: float | None = None
    ) -> "grpc.aio.UnaryStreamCall[pb.NodeGenerateRequest, generate_pb2.GenerateResponse]":
        draw = self._draw
        prefix = draw.choice(self._prefixes)[: draw.randrange(65)]
        several = draw.random() < 0.1
        sampling = generate_pb2.SamplingParams(
            temperature=draw.choice((0.0, 1.0)),
            max_tokens=draw.randint(1, 24),
            seed=draw.getrandbits(32),
            n=2 if several else 1,
            ignore_eos=True,
            stop=["the"] if draw.random() < 0.2 else [],
        )
        request = pb.NodeGenerateRequest(
            request_id=name,
            attempt=1,
            token_ids=pack_tokens(prefix + random_prompt(draw, draw.randint(1, 80))),
            sampling=sampling,
            priority=draw.choice((0, 0, 0, 1)),
        )
        return self._stub.Generate(request, timeout=timeout)


async def _drain(
    call: "grpc.aio.UnaryStreamCall[pb.NodeGenerateRequest, generate_pb2.GenerateResponse]",
) -> None:
    try:
        async for _ in call:
            pass
    except asyncio.CancelledError:
        if not call.cancelled():
            raise

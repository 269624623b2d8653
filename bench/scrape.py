"""What it costs a node that works to be scraped."""

import asyncio
import gzip
import random
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple, cast

import grpc

from bench.figures import Goal, Spread
from bench.requests import random_prompt
from bench.watched_node import watched_node
from kvmesh.packing import pack_tokens
from kvmesh.v1 import cache_node_pb2 as pb
from kvmesh.v1 import cache_node_pb2_grpc, generate_pb2

STREAMS, PROMPT, OUTPUT = 32, 16, 96
USUAL, OFTEN = 5.0, 0.1  # seconds between two scrapes: Prometheus', and 50 times as often
GOAL = 0.01  # of a step, at most


@dataclass(frozen=True, slots=True)
class ScrapeCost:
    """Seconds of CPU that the node takes for a step of 32 streams, a value each turn: by the wall
    clock it would show what others do on the machine.
    """

    never: Spread
    usual: Spread
    often: Spread
    scrape: Spread  # seconds of one by the wall clock, as Prometheus sees it
    size: int  # bytes of one

    @property
    def usual_share(self) -> float:
        return _share(self.usual, self.never)

    @property
    def often_share(self) -> float:
        return _share(self.often, self.never)

    @property
    def goals(self) -> list[Goal]:
        """What a scrape in 5 s costs is far below what two turns differ by: it follows from what
        fifty of them cost.
        """
        share = max(0.0, self.often_share) * OFTEN / USUAL
        return [Goal(f"share of a step, scraped every {USUAL:g} s", share, GOAL)]


def _share(scraped: Spread, never: Spread) -> float:
    """By which steps are longer, turn by turn."""
    return median(a / b for a, b in zip(scraped.values, never.values, strict=True)) - 1


def measure_scrape(directory: Path, repetitions: int) -> ScrapeCost:
    """On a node with the model in `directory`, one compute thread. Turns with and without scrapes
    follow each other.
    """
    return asyncio.run(_measure(directory, repetitions))


async def _measure(directory: Path, repetitions: int) -> ScrapeCost:
    config = {"kv_cache_bytes": 1 << 28, "max_num_seqs": STREAMS, "metrics_port": 0}
    async with (
        watched_node(directory, **config) as node,
        grpc.aio.insecure_channel(f"127.0.0.1:{node.port}") as channel,
    ):
        load = _Load(channel)
        scraper = _Scraper(await load.metrics_url())
        await load.turn()  # pages of the pool, caches
        steps: dict[float | None, list[float]] = {None: [], USUAL: [], OFTEN: []}
        for _ in range(repetitions):
            for interval, found in steps.items():
                before = scraper.spent()
                async with scraper.every(interval):
                    await load.turn()
                after = scraper.spent()
                found.append((after.cpu - before.cpu) / (after.steps - before.steps))
    never, usual, often = (Spread.of(found) for found in steps.values())
    return ScrapeCost(never, usual, often, Spread.of(scraper.seconds), scraper.size)


class _Spent(NamedTuple):
    cpu: float  # seconds
    steps: float


class _Scraper:
    def __init__(self, url: str) -> None:
        self.seconds: list[float] = []
        self.size = 0
        self._request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})

    @asynccontextmanager
    async def every(self, interval: float | None) -> AsyncIterator[None]:
        """Scrapes at once, and then at this pace; None: never."""
        task = asyncio.create_task(self._run(interval)) if interval is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _run(self, interval: float) -> None:
        while True:
            await asyncio.to_thread(self._scrape)
            await asyncio.sleep(interval)

    def spent(self) -> _Spent:
        """What the node says of itself, between two turns."""
        text = gzip.decompress(self._read()).decode()
        told = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        cpu, steps = told["process_cpu_seconds_total"], told["kvmesh_engine_steps_total"]
        return _Spent(float(cpu), float(steps))

    def _scrape(self) -> None:
        started = time.perf_counter()
        self.size = len(self._read())
        self.seconds.append(time.perf_counter() - started)

    def _read(self) -> bytes:
        with urllib.request.urlopen(self._request) as answer:
            return cast(bytes, answer.read())


class _Load:
    """Streams that decode together, again and again."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = cache_node_pb2_grpc.CacheNodeStub(channel)
        self._draw = random.Random(0)
        self._names = count()

    async def metrics_url(self) -> str:
        info = await self._stub.Info(pb.InfoRequest())
        return f"http://127.0.0.1:{info.metrics_port}/metrics"

    async def turn(self) -> None:
        await asyncio.gather(*(self._stream() for _ in range(STREAMS)))

    async def _stream(self) -> None:
        request = pb.NodeGenerateRequest(
            request_id=f"r{next(self._names)}",
            token_ids=pack_tokens(random_prompt(self._draw, PROMPT)),
            sampling=generate_pb2.SamplingParams(max_tokens=OUTPUT, temperature=0, ignore_eos=True),
        )
        async for _ in self._stub.Generate(request):
            pass

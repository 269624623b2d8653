"""Mixed load on a fleet whose nodes fail one after the other: nobody may notice."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

import grpc

from bench.faulty_fleet import FaultyFleet
from bench.figures import Goal
from bench.known_answers import Asker, Reply, draw_requests
from bench.random_model import write_random_model
from kvmesh.v1 import fleet_pb2, fleet_pb2_grpc
from kvmesh.v1 import generate_pb2 as pb

NODES, USERS, REQUESTS = 3, 8, 24
SETTLE = 30.0  # seconds for the fleet to be idle and whole again
LEAVERS = 0.15  # share of clients who leave in mid-answer

# What a client may be told of a fleet in trouble. Anything else is a fault of ours.
CLEAR = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED")


@dataclass(slots=True)
class Soak:
    """What was sent, what happened meanwhile, and what was found."""

    seconds: float
    ends: Counter[str] = field(default_factory=Counter)  # requests, by how they ended
    faults: Counter[str] = field(default_factory=Counter)
    resumed: int = 0  # answers that went on at another node
    moved: int = 0  # those of them that were read to the end
    wrong: list[str] = field(default_factory=list)  # answers that differ from the undisturbed ones
    left: list[str] = field(default_factory=list)  # what was not released
    log: list[str] = field(default_factory=list)

    @property
    def unclear(self) -> int:
        """Requests that ended in a way that tells their client nothing."""
        known = {"answered", "left", *CLEAR}
        return sum(count for end, count in self.ends.items() if end not in known)

    @property
    def failed(self) -> float:
        """Share of the requests that ended with an error, however clear."""
        return sum(self.ends[code] for code in CLEAR) / max(1, self.ends.total())

    @property
    def goals(self) -> list[Goal]:
        return [
            Goal("answers with a wrong, missing or repeated token", len(self.wrong), 0),
            Goal("requests that ended without a clear status", self.unclear, 0),
            Goal("share of requests that failed", self.failed, 0.01),
            Goal("things not released", len(self.left), 0),
            Goal("answers that went on at another node", self.resumed, 1, at_most=False),
        ]

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "log": None, "unclear": self.unclear, "failed": self.failed}


def soak(seconds: float, tokenizer: Path, *, period: float = 10.0, seed: int = 0) -> Soak:
    """Runs so long, with a fault every `period` seconds. `tokenizer` is the directory of a model
    that has one.
    """
    with TemporaryDirectory() as directory:
        model = write_random_model(Path(directory), tokenizer)
        return asyncio.run(_soak(seconds, period, model, seed))


async def _soak(seconds: float, period: float, model: Path, seed: int) -> Soak:
    draw = random.Random(seed)
    fleet = FaultyFleet(model, NODES, draw)
    async with fleet.running(), grpc.aio.insecure_channel(fleet.target) as channel:
        run = _Run(fleet, Asker(channel), draw, seconds)
        await run.learn()
        users = [asyncio.create_task(run.user()) for _ in range(USERS)]
        await run.strike_every(period)
        await asyncio.gather(*users)
        await run.settle(fleet_pb2_grpc.FleetStub(channel))
    run.result.log = fleet.log
    return run.result


class _Run:
    def __init__(
        self, fleet: FaultyFleet, asker: Asker, draw: random.Random, seconds: float
    ) -> None:
        self.result = Soak(seconds)
        self._fleet = fleet
        self._asker = asker
        self._draw = draw
        self._requests = draw_requests(draw, REQUESTS)
        self._known: list[Reply] = []
        self._end = 0.0

    async def learn(self) -> None:
        """What the answers are when nothing happens."""
        for request in self._requests:
            reply = await self._asker.ask(request)
            assert reply is not None
            self._known.append(reply)
        self._end = time.monotonic() + self.result.seconds

    async def user(self) -> None:
        while time.monotonic() < self._end:
            place = self._draw.randrange(len(self._requests))
            leaves = self._draw.random() < LEAVERS
            try:
                self.result.ends[await self._one(place, self._requests[place], leaves)] += 1
            except grpc.aio.AioRpcError as error:
                self.result.ends[error.code().name] += 1
                await asyncio.sleep(0.2)  # as a client does that means well

    async def strike_every(self, period: float) -> None:
        """Faults may last longer than a period; all are over at the end."""
        strikes = []
        while time.monotonic() + period < self._end:
            await asyncio.sleep(period)
            strikes.append(asyncio.create_task(self._fleet.strike()))
        self.result.faults.update(await asyncio.gather(*strikes))

    async def settle(self, stub: "fleet_pb2_grpc.FleetAsyncStub") -> None:
        """Waits until nothing is held any more, and says what still is."""
        await self._fleet.until_up()
        deadline = time.monotonic() + SETTLE
        self.result.left = await self._held(stub)
        while self.result.left and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            self.result.left = await self._held(stub)
        self.result.resumed = int(await self._metric('resumes_total{outcome="done"}'))

    async def _one(self, place: int, request: pb.GenerateRequest, leaves: bool) -> str:
        reply = await self._asker.ask(request, self._draw.randint(1, 30) if leaves else None)
        if reply is None:
            return "left"
        if (problem := reply.problem(self._known[place])) is not None:
            self.result.wrong.append(f"request {place} on {' → '.join(reply.nodes)}: {problem}")
        began, ended = reply.nodes
        self.result.moved += began != ended
        return "answered"

    async def _held(self, stub: "fleet_pb2_grpc.FleetAsyncStub") -> list[str]:
        nodes = (await stub.ListNodes(fleet_pb2.ListNodesRequest())).nodes
        held = [f"ledger: {node.in_flight} on {node.name}" for node in nodes if node.in_flight]
        if in_flight := await self._metric("requests_in_flight"):
            held.append(f"router: {in_flight:g} requests in flight")
        for place, report in enumerate(await self._fleet.checked()):
            held += [f"node-{place}: {violation}" for violation in report.violations]
            if report.requests or report.held_blocks:
                held.append(
                    f"node-{place}: {report.requests} requests, {report.held_blocks} blocks"
                )
        return held

    async def _metric(self, name: str) -> float:
        text = await asyncio.to_thread(_read, f"{self._fleet.http_url}/metrics")
        lines = [each for each in text.splitlines() if each.startswith(f"kvmesh_router_{name}")]
        return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def _read(url: str) -> str:
    with urlopen(url, timeout=10) as response:
        return str(response.read(), "utf-8")

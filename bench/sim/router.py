"""The router's own parts around simulated nodes, on the running loop's clock."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from math import inf
from typing import cast

import grpc
from prometheus_client import CollectorRegistry

from bench.sim.call import SimChannel
from bench.sim.node import SimNode
from bench.sim.prompts import Prompt
from bench.sim.watch import Watch
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import generate_pb2 as pb
from router.admission import Admission
from router.admission_metrics import AdmissionMetrics
from router.answer import Answer
from router.charge import TokenAccount
from router.config import RouterConfig
from router.dispatch import Dispatcher
from router.eligibility import Eligibility
from router.fair_queue import FairQueue
from router.fleet import Model
from router.index import Index
from router.job import Job
from router.ledger import Ledger
from router.local_limits import LocalLimits
from router.metrics import RouterMetrics
from router.placement import Placement
from router.prompt import Prompt as KnownPrompt
from router.registry import Registry
from router.request_size import RequestSize
from router.retry_budget import RetryBudget
from router.sender import Sender
from router.start_gate import StartGate
from router.tenant_directory import TenantDirectory
from router.tenants import EVERYBODY
from router.watcher import state_interval
from router.watermark import Marks, Watermark


class SimRouter:
    """Admission, placement, journeys and index of a router, wired as RouterApp does it.

    Without deadlines: a stream that has lost its node waits for another as long as it takes.
    """

    def __init__(
        self, config: RouterConfig, block_size: int, seed: int, index_delay: float
    ) -> None:
        clock, rng = asyncio.get_running_loop().time, random.Random(seed)
        metrics = RouterMetrics()
        self.ledger = Ledger()
        self._registry = Registry([])
        self._index = Index(None, "")
        self._index_delay = index_delay
        watermark = Watermark(self.ledger, Marks(config.low_watermark, config.high_watermark))
        self._gate = StartGate(
            self._registry,
            watermark,
            FairQueue(config.max_queue),
            AdmissionMetrics(CollectorRegistry()),
            clock,
        )
        self.ledger.on_room(self._gate.wake)
        self._registry.on_change(self._gate.wake)
        limits = LocalLimits(clock)
        self._admission = Admission(
            config.max_in_flight,
            config.queue_timeout,
            TenantDirectory(None),
            limits,
            TokenAccount(limits, None),
            self._gate,
            clock,
        )
        eligibility = Eligibility(config.slow_start, clock, rng)
        self._registry.on_join(eligibility.joined)
        placement = Placement(
            self._registry,
            eligibility,
            self._index,
            self.ledger,
            watermark,
            config.policy,
            rng,
            clock,
        )
        sender = Sender(placement, self.ledger, "simulated", metrics, config.patience)
        budget = RetryBudget(config.retry_share, clock)
        self._dispatcher = Dispatcher(sender, budget, metrics, resume_timeout=inf)
        self._model = _model(block_size)
        self._prompts: dict[str, Prompt] = {}  # of live requests

    def add_nodes(self, nodes: Sequence[SimNode]) -> "list[Watch]":
        """They are up from now on."""
        interval = state_interval(len(nodes))
        channels = [SimChannel(node, self._prompts.__getitem__) for node in nodes]
        return [
            Watch(
                node,
                cast(grpc.aio.Channel, channel),
                self._registry,
                self._index,
                self.ledger,
                interval,
                self._index_delay,
            )
            for node, channel in zip(nodes, channels, strict=True)
        ]

    async def run(self) -> None:
        """What a router does by itself."""
        await self._gate.run()

    @asynccontextmanager
    async def generate(self, name: str, prompt: Prompt, output: int) -> AsyncIterator[Answer]:
        """As RouterCore.generate, for a prompt that is tokens already. Raises RequestError."""
        job = self._job(name, prompt, output)
        self._prompts[name] = prompt
        try:
            with self._admission.slot():
                charge = await self._admission.start(EVERYBODY, 0, job.size, inf)
                with closing(charge):
                    answer = await self._dispatcher.open(job)
                    usage = pb.Usage()
                    try:
                        yield answer
                        usage = (await answer.summary()).usage
                    finally:
                        charge.use(usage, answer.frames)
                        answer.close()
        finally:
            del self._prompts[name]

    def _job(self, name: str, prompt: Prompt, output: int) -> Job:
        size = RequestSize(len(prompt.tokens), output, 1, self._model.block_size)
        request = pb.GenerateRequest(request_id=name, sampling=pb.SamplingParams(max_tokens=output))
        known = KnownPrompt(b"", len(prompt.tokens), prompt.block_keys, tokenize_us=0, key_us=0)
        arrived = time.monotonic()  # for metrics alone, which nobody reads
        return Job(request, known, self._model, (), arrived, inf, size)


def _model(block_size: int) -> Model:
    return Model(
        name="simulated",
        max_model_len=1 << 30,
        vocab_size=1 << 32,
        block_size=block_size,
        tokenizer=cast(Tokenizer, None),  # prompts are tokens
        root_of=lambda _salt: b"",
        created=0,
    )

"""A request's path through the router, the same for gRPC and HTTP."""

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    asynccontextmanager,
    closing,
    contextmanager,
    nullcontext,
)
from typing import NamedTuple

from kvmesh.errors import invalid, unavailable
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2
from kvmesh.validation import (
    check_cache_mode,
    check_priority,
    check_request_id,
    check_sampling,
    check_session,
    check_unserved,
)
from router.admission import Admission, check_tenant_priority
from router.answer import Answer
from router.charge import Charge
from router.deadline import within
from router.dispatch import Dispatcher
from router.fleet import Fleet, Model
from router.job import Job
from router.leasing import Leasing
from router.metadata import Pair
from router.metrics import RouterMetrics
from router.placement import Placement
from router.prompt import PromptReader
from router.registry import Registry
from router.request_log import Entry, RequestLog
from router.request_size import RequestSize, check_fits, fit_max_tokens
from router.tenants import EVERYBODY, Tenant
from router.trace import UNTRACED, Trace


class Caller(NamedTuple):
    """What a front knows beside the request. `timeout`: seconds, None without a deadline.

    `default_max_tokens` is for a request that says none: so many, or what the context leaves.
    `ready` is awaited once the request has passed every check, before anything is reserved for it:
    of several that belong together none starts if one is wrong.
    """

    endpoint: str  # for the log
    tenant: Tenant = EVERYBODY
    metadata: Iterable[Pair] = ()
    timeout: float | None = None
    default_max_tokens: int | None = None
    ready: Callable[[], Awaitable[object]] | None = None


class RouterCore:
    """Validates, tokenises, admits, dispatches; the fronts only translate."""

    def __init__(
        self,
        fleet: Fleet,
        registry: Registry,
        admission: Admission,
        reader: PromptReader,
        placement: Placement,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        *,
        leasing: Leasing,
        request_log: RequestLog,
        request_timeout: float,
    ) -> None:
        self.fleet = fleet
        self.metrics = metrics
        self._registry = registry
        self._admission = admission
        self._reader = reader
        self._placement = placement
        self._dispatcher = dispatcher
        self._request_timeout = request_timeout
        self._leasing = leasing
        self._log = request_log

    @contextmanager
    def arrival(
        self, endpoint: str, client: Iterable[Pair] | None, *, bounded: bool = True
    ) -> Iterator[Tenant]:
        """Counts a request and holds its place from arrival to end; fronts work on it inside.
        `client` is its metadata or headers; None is for what every client may ask.

        Raises UNAUTHENTICATED for a client that is no tenant, RESOURCE_EXHAUSTED when there is no
        place for it. What costs nothing, and operators need most when the router is full, is not
        `bounded`.
        """
        with self.metrics.observed(endpoint):
            tenant = EVERYBODY if client is None else self.tenant_of(client)
            with self._admission.slot(tenant) if bounded else nullcontext():
                yield tenant

    def tenant_named(self, name: str) -> Tenant:
        """Everybody for an empty name. Raises INVALID_ARGUMENT for one that no tenant has."""
        return self._admission.tenant_named(name)

    def more_places(self, tenant: Tenant, count: int) -> AbstractContextManager[None]:
        """Taken at once, for a request that stands for `count` more than the one that arrived; the
        block gives them back. Raises RESOURCE_EXHAUSTED, and INVALID_ARGUMENT for so many that
        there never is room.
        """
        return self._admission.slot(tenant, count)

    @asynccontextmanager
    async def generate(self, request: pb.GenerateRequest, caller: Caller) -> AsyncIterator[Answer]:
        """An answer whose first frame is there; leaving the block releases all of it everywhere.

        Takes over `request` and fills in what the client left out. Raises RequestError.
        """
        arrived = time.monotonic()
        with self._entry(request, caller) as entry:
            job = await self._prepare(request, caller, arrived, entry.trace)
            entry.prepared = time.monotonic()
            if caller.ready is not None:
                await caller.ready()
            limit = job.deadline - arrived
            async with within(job.deadline, f"the request did not end within {limit:g} s"):
                with closing(await self._admit(job, caller)) as charge:
                    entry.admitted = time.monotonic()
                    answer = await self._dispatcher.open(job)
                    answer.report.queue_us = int(charge.waited * 1e6)
                    entry.answered(answer.report)
                    try:
                        yield answer
                        entry.summary = await answer.summary()
                        self.metrics.used(entry.summary.usage)
                        self.metrics.completed(time.monotonic() - arrived)
                    finally:
                        entry.resumes = answer.resumes
                        charge.use(entry.summary.usage, answer.frames)
                        answer.close()

    async def route(
        self,
        request: inference_pb2.RouteRequest,
        caller: Caller,
        response: inference_pb2.RouteResponse,
    ) -> None:
        """A lease for the request on the best node, which holds a place in flight until it ends;
        put into `response`, since to copy it takes as long as to sign it.

        Raises RequestError, UNIMPLEMENTED without a fleet key.
        """
        self._leasing.check(request)
        arrived = time.monotonic()
        generate = request.request
        # Before its place is counted: a tenant at its limit may go on elsewhere.
        attempt = self._leasing.next_attempt(caller.tenant, generate.request_id)
        with self._entry(generate, caller) as entry:
            slot = self._admission.slot(caller.tenant)
            try:
                job = await self._prepare(generate, caller, arrived, entry.trace)
                entry.prepared = time.monotonic()
                charge = await self._admit(job, caller)
            except BaseException:
                slot.close()
                raise
            entry.admitted = time.monotonic()
            self._leasing.lease(job, request, attempt, slot, charge, entry, response)

    def tenant_of(self, client: Iterable[Pair]) -> Tenant:
        """See TenantDirectory.tenant_of."""
        return self._admission.tenant_of(client)

    def check_leases(self, client: Iterable[Pair]) -> None:
        """Raises UNAUTHENTICATED for a client that is no tenant, UNIMPLEMENTED without a key."""
        self.tenant_of(client)
        self._leasing.check_enabled()

    async def explain(self, request: pb.GenerateRequest, caller: Caller) -> pb.RouteReport:
        """Where `request` would go now, and why. Reserves nothing. Raises RequestError."""
        job = await self._prepare(request, caller, time.monotonic())
        prompt, model = job.prompt, job.model
        candidates = self._placement.candidates(prompt, model, self._registry.up)
        choice = self._placement.choose(prompt, model, candidates)
        report = self._placement.report(request, prompt, choice)
        report.candidates.extend(self._placement.explain(prompt, choice, candidates))
        return report

    async def tokenize(
        self, request: inference_pb2.TokenizeRequest
    ) -> inference_pb2.TokenizeResponse:
        """As Generate would see the prompt. Raises RequestError."""
        model = self.model(request.model)
        token_ids = await self._reader.tokenize(request, model)
        return inference_pb2.TokenizeResponse(
            token_ids=token_ids, count=len(token_ids) // 4, max_model_len=model.max_model_len
        )

    async def detokenize(self, request: inference_pb2.DetokenizeRequest) -> str:
        """The text of token ids. Raises RequestError."""
        model = self.model(request.model)
        return await self._reader.detokenize(request.token_ids, model, request.skip_special_tokens)

    def model(self, name: str) -> Model:
        """The model called `name`. Raises INVALID_ARGUMENT for another, UNAVAILABLE without any."""
        model = self.fleet.model
        if name not in ("", model.name):
            raise invalid("model", f"must be {model.name!r} or empty, is {name[:200]!r}")
        return model

    def _entry(self, request: pb.GenerateRequest, caller: Caller) -> AbstractContextManager[Entry]:
        return self._log.entry(caller.endpoint, request, caller.tenant.name, caller.metadata)

    async def _admit(self, job: Job, caller: Caller) -> Charge:
        """Returns when the job may be dispatched. Raises RequestError."""
        priority = job.request.priority
        return await self._admission.start(caller.tenant, priority, job.size, job.deadline)

    async def _prepare(
        self,
        request: pb.GenerateRequest,
        caller: Caller,
        arrived: float,
        trace: Trace = UNTRACED,
    ) -> Job:
        """Every check that needs no node, the cheap ones first; then decides what is left open."""
        model = self.model(request.model)
        check_request_id(request.request_id)
        check_priority(request.priority)
        check_session(request.session)
        check_tenant_priority(caller.tenant, request.priority)
        check_cache_mode(request.cache)
        check_unserved(request)
        check_sampling(request.sampling, model.vocab_size)
        prompt = await self._reader.read(request, model, caller.tenant)
        self.metrics.prompt_read(prompt)
        if (largest := self._registry.largest_pool) is None:
            raise unavailable("no cache node is up")
        most = fit_max_tokens(request.sampling, prompt.count, model, largest)
        if caller.default_max_tokens is not None and not request.sampling.HasField("max_tokens"):
            most = min(most, caller.default_max_tokens)
        self._resolve(request, most)
        size = RequestSize.of(request.sampling, prompt.count, model.block_size)
        check_fits(size, largest)
        deadline = arrived + self._limit(caller.timeout)
        return Job(request, prompt, model, caller.metadata, arrived, deadline, size, trace)

    def _limit(self, timeout: float | None) -> float:
        return self._request_timeout if timeout is None else min(timeout, self._request_timeout)

    def _resolve(self, request: pb.GenerateRequest, max_tokens: int) -> None:
        drawn, sampling = os.urandom(24), request.sampling
        if not request.request_id:
            request.request_id = drawn[:16].hex()
        sampling.max_tokens = max_tokens
        if not sampling.HasField("seed"):
            sampling.seed = int.from_bytes(drawn[16:])

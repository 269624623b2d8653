"""A request's path through the router, the same for gRPC and HTTP."""

import secrets
import time
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from kvmesh.errors import Code, RequestError, invalid
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.v1 import inference_pb2
from kvmesh.validation import check_priority, check_request_id, check_sampling, check_unserved
from router.admission import Admission, fit_max_tokens
from router.answer import Answer
from router.dispatch import Dispatcher, Job
from router.fleet import Fleet, Model
from router.metadata import Pair
from router.metrics import RouterMetrics
from router.placement import Placement
from router.prompt import Prompt, PromptReader
from router.registry import Registry

log = structlog.get_logger("router")


@dataclass(frozen=True, slots=True)
class Caller:
    """What a front knows beside the request. `timeout` is in seconds, None when the client set no
    deadline.
    """

    endpoint: str  # for the log
    metadata: Iterable[Pair] = ()
    timeout: float | None = None


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
        request_timeout: float,
        log_requests: bool,
    ) -> None:
        self.fleet = fleet
        self.metrics = metrics
        self._registry = registry
        self._admission = admission
        self._reader = reader
        self._placement = placement
        self._dispatcher = dispatcher
        self._request_timeout = request_timeout
        self._log_requests = log_requests

    @asynccontextmanager
    async def generate(self, request: pb.GenerateRequest, caller: Caller) -> AsyncIterator[Answer]:
        """An answer whose first frame is there. Leaving the block releases everything, on node and
        router.

        Takes over `request` and fills in what the client left out. Raises RequestError.
        """
        arrived = time.monotonic()
        with self._admission.slot():
            prompt, model = await self._prepare(request)
            deadline = arrived + min(caller.timeout or self._request_timeout, self._request_timeout)
            job = Job(request, prompt, model, caller.metadata, arrived, deadline)
            answer = await self._dispatcher.open(job)
            try:
                yield answer
                await self._finished(answer, caller, arrived)
            finally:
                answer.close()

    async def explain(self, request: pb.GenerateRequest) -> pb.RouteReport:
        """Where `request` would go now, and why. Reserves nothing. Raises RequestError."""
        with self._admission.slot():
            prompt, model = await self._prepare(request)
            candidates = self._placement.candidates(prompt, model, self._registry.up)
            choice = self._placement.choose(prompt, model, candidates)
            report = self._placement.report(request, prompt, choice)
            report.candidates.extend(self._placement.explain(choice, candidates))
            return report

    async def tokenize(
        self, request: inference_pb2.TokenizeRequest
    ) -> inference_pb2.TokenizeResponse:
        """As Generate would see the prompt. Raises RequestError."""
        with self._admission.slot():
            model = self.model(request.model)
            token_ids = await self._reader.tokenize(request, model)
            return inference_pb2.TokenizeResponse(
                token_ids=token_ids, count=len(token_ids) // 4, max_model_len=model.max_model_len
            )

    async def detokenize(self, request: inference_pb2.DetokenizeRequest) -> str:
        """The text of token ids. Raises RequestError."""
        with self._admission.slot():
            model = self.model(request.model)
            return await self._reader.detokenize(
                request.token_ids, model, request.skip_special_tokens
            )

    def model(self, name: str) -> Model:
        """The model that clients call `name`. Raises INVALID_ARGUMENT for another, UNAVAILABLE
        before the first node.
        """
        model = self.fleet.model
        if name not in ("", model.name):
            raise invalid("model", f"must be {model.name!r} or empty, is {name[:200]!r}")
        return model

    async def _prepare(self, request: pb.GenerateRequest) -> tuple[Prompt, Model]:
        """Every check that needs no node, the cheap ones first; what the client left open is
        decided.
        """
        model = self.model(request.model)
        check_request_id(request.request_id)
        check_priority(request.priority)
        check_unserved(request)
        check_sampling(request.sampling, model.vocab_size)
        prompt = await self._reader.read(request, model)
        self.metrics.prompt_read(prompt)
        if (largest := self._registry.largest_pool) is None:
            raise RequestError(Code.UNAVAILABLE, "no cache node is up")
        self._resolve(request, fit_max_tokens(request.sampling, prompt.count, model, largest))
        return prompt, model

    def _resolve(self, request: pb.GenerateRequest, max_tokens: int) -> None:
        request.request_id = request.request_id or uuid.uuid4().hex
        request.sampling.max_tokens = max_tokens
        if not request.sampling.HasField("seed"):
            request.sampling.seed = secrets.randbits(64)

    async def _finished(self, answer: Answer, caller: Caller, arrived: float) -> None:
        summary = await answer.summary()
        self.metrics.used(summary.usage)
        if self._log_requests:
            _log(answer, summary, caller, time.monotonic() - arrived)


def _log(answer: Answer, summary: pb.Summary, caller: Caller, seconds: float) -> None:
    log.info(
        "request",
        request_id=answer.report.request_id,
        endpoint=caller.endpoint,
        node=answer.report.node,
        attempt=answer.report.attempt,
        reason=answer.report.reason,
        prompt_tokens=answer.report.prompt_tokens,
        cached_tokens=summary.usage.cached.gpu + summary.usage.cached.cpu,
        completion_tokens=summary.usage.completion_tokens,
        queue_us=summary.queue_us,
        prefill_us=summary.prefill_us,
        seconds=round(seconds, 6),
    )

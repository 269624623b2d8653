"""What the router tells Prometheus. Nothing here may break a request: an error is logged once and
counted no further.
"""

import asyncio

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector

from kvmesh.errors import Code, RequestError
from kvmesh.harmless import LogsOnce, harmless
from kvmesh.tallies import Distribution, Tally
from kvmesh.v1 import generate_pb2 as pb
from router.admission_metrics import AdmissionMetrics
from router.fleet_gauges import FleetGauges
from router.index import Index
from router.policy import Choice
from router.prompt import Prompt
from router.refused_error import RefusedError
from router.registry import Registry
from router.retry_budget import RetryBudget

_STAGE = (
    *(1e-6, 2.5e-6, 5e-6, 10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 500e-6),
    *(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 0.1, 0.5),
)
_TTFT = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NEXT = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
_WHOLE = (1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)

_TIERS = ("gpu", "cpu", "remote")


class RouterMetrics(LogsOnce):
    """One set per router, in its own registry. Times are in seconds, as Prometheus wants them;
    labels are bounded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.registry = CollectorRegistry()
        self.admission = AdmissionMetrics(self.registry)
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Tally:
            return Tally(self.registry, f"kvmesh_router_{name}", text, *labels)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Distribution:
            return Distribution(self.registry, f"kvmesh_router_{name}_seconds", text, bounds)

        self._requests = counter("requests", "Requests that ended", "endpoint", "code")
        self._in_flight = 0
        in_flight = Gauge(
            "kvmesh_router_requests_in_flight",
            "Requests between arrival and end",
            registry=self.registry,
        )
        in_flight.set_function(lambda: self._in_flight)
        self._routed = counter(
            "routed", "Dispatches by why the node was chosen", "policy", "reason"
        )
        self._retries = counter("retries", "Dispatches that a node did not take", "code")
        self._resumes = counter("resumes", "Answers whose node was lost in mid-stream", "outcome")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens of dispatched requests")
        self._predicted = counter("predicted_cached_tokens", "Of these, cached says the index")
        self._cached = counter("cached_tokens", "Of these, cached said the node", "tier")
        for tier in _TIERS:
            self._cached.add(0, tier)  # there from the start
        self._completion = counter("completion_tokens", "Tokens generated")
        self._tokenize = histogram("tokenize", "Rendering and tokenising a prompt", _STAGE)
        self._keys = histogram("block_keys", "Hashing a prompt into block keys", _STAGE)
        self._route = histogram("route", "Look-up, choice and reservation", _STAGE)
        self._leases = counter("leases", "Leases by what became of them", "event")
        self._ttft = histogram("time_to_first_token", "Arrival to the first frame", _TTFT)
        self._next = histogram(
            "inter_token", "One frame of an answer to its next, as the client takes them", _NEXT
        )
        self._whole = histogram("request", "Arrival to the end of a complete answer", _WHOLE)

    def observed(self, endpoint: str) -> "Observed":
        """Counts a request while it is in flight, and then how it ended."""
        return Observed(self, endpoint)

    def arrived(self) -> None:
        self._in_flight += 1

    @harmless
    def ended(self, endpoint: str, error: BaseException | None) -> None:
        self._in_flight -= 1
        self._requests.add(1, endpoint, "OK" if error is None else _code(error).name)
        if isinstance(error, RefusedError):
            self.admission.refused(error)

    @harmless
    def prompt_read(self, prompt: Prompt) -> None:
        self._tokenize.add(prompt.tokenize_us / 1e6)
        self._keys.add(prompt.key_us / 1e6)

    @harmless
    def routed(self, policy: str, choice: Choice, prompt: Prompt, ns: int) -> None:
        self._route.add(ns / 1e9)
        self._routed.add(1, policy, choice.kind)
        self._prompt_tokens.add(prompt.count)
        self._predicted.add(choice.candidate.expected_tokens)

    @harmless
    def retried(self, code: Code) -> None:
        self._retries.add(1, code.name)

    @harmless
    def resumed(self, outcome: str) -> None:
        """One of a few words: done, failed, impossible."""
        self._resumes.add(1, outcome)

    @harmless
    def first_token(self, seconds: float) -> None:
        self._ttft.add(seconds)

    @harmless
    def next_frame(self, seconds: float) -> None:
        self._next.add(seconds)

    @harmless
    def completed(self, seconds: float) -> None:
        self._whole.add(seconds)

    @harmless
    def lease(self, event: str) -> None:
        self._leases.add(1, event)

    @harmless
    def used(self, usage: pb.Usage) -> None:
        self._completion.add(usage.completion_tokens)
        for tier in _TIERS:
            if tokens := getattr(usage.cached, tier):
                self._cached.add(tokens, tier)

    def watch(self, registry: Registry, index: Index, budget: RetryBudget) -> None:
        """Adds gauges that are read off the fleet when Prometheus asks."""
        self.registry.register(FleetGauges(registry, index))
        left = Gauge("kvmesh_router_retry_budget", "Retries to be had", registry=self.registry)
        left.set_function(lambda: budget.left)


class Observed:
    """A request between arrival and end. A class: a generator's block takes three times as long."""

    __slots__ = ("_endpoint", "_metrics")

    def __init__(self, metrics: RouterMetrics, endpoint: str) -> None:
        self._metrics, self._endpoint = metrics, endpoint

    def __enter__(self) -> None:
        self._metrics.arrived()

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        self._metrics.ended(self._endpoint, error)


def _code(error: BaseException) -> Code:
    if isinstance(error, RequestError):
        return error.code
    return Code.CANCELLED if isinstance(error, asyncio.CancelledError) else Code.INTERNAL

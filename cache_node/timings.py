"""How long requests and steps take, and how much they carry: counted once a step."""

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from cache_node.scheduler import Sampled
from cache_node.sequence import Request
from cache_node.step_output import Ended
from kvmesh.harmless import LogsOnce, harmless
from kvmesh.tallies import Distribution, Tally

FIRST_TOKEN = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
NEXT_TOKEN = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
REQUEST = (1e-3, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
STEP = (100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
STEP_TOKENS = tuple(1 << i for i in range(15))
REQUEST_TOKENS = tuple(1 << i for i in range(4, 21))


class Timings(LogsOnce, Collector):
    """The histograms of a node. Times are seconds of the engine's clock.

    Counted on the engine's thread, read on any. Never raises into a step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._registry = CollectorRegistry()

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Distribution:
            return Distribution(self._registry, f"kvmesh_{name}", text, bounds)

        self.first_token = histogram(
            "time_to_first_token_seconds", "Arrival at the node to the first token", FIRST_TOKEN
        )
        self.next_token = histogram(
            "inter_token_latency_seconds", "One token of a sample to its next", NEXT_TOKEN
        )
        self.request = histogram(
            "e2e_request_latency_seconds", "Arrival at the node to the last token", REQUEST
        )
        self.queue = histogram(
            "request_queue_time_seconds", "Arrival at the node to the first step", REQUEST
        )
        self.prefill = histogram(
            "request_prefill_time_seconds", "First step to first token", REQUEST
        )
        self.step = histogram("engine_step_seconds", "A step, planned and computed", STEP)
        self.step_tokens = histogram(
            "iteration_tokens", "Tokens computed in a step, prompts' among them", STEP_TOKENS
        )
        self.request_tokens = histogram(
            "request_tokens", "Tokens of prompt and output when a sample ends", REQUEST_TOKENS
        )
        self.prompt_tokens = Tally(
            self._registry,
            "kvmesh_prompt_tokens",
            "Prompt tokens of requests that came to a first token, cached ones among them",
        )

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()

    @harmless
    def stepped(self, tokens: int, sampled: Seq[Sampled], started: float, now: float) -> None:
        """A step has computed `tokens`, and chosen a token for each of `sampled`."""
        self.step.add(now - started)
        self.step_tokens.add(tokens)
        waits: dict[float, int] = {}  # most samples had their last token in the step before
        for each in sampled:
            sequence = each.sequence
            if sequence.last_token is not None:
                waits[sequence.last_token] = waits.get(sequence.last_token, 0) + 1
            elif sequence is sequence.request.leader:
                self._begun(sequence.request, now)
            sequence.last_token = now
        for last, samples in waits.items():
            self.next_token.add(now - last, times=samples)

    @harmless
    def ended(self, ended: Seq[Ended]) -> None:
        """Requests whose samples have all come to their end by themselves."""
        for request in (each.request for each in ended):
            assert request.finished is not None
            self.request.add(request.finished - request.arrival)
            for sequence in request.sequences:
                self.request_tokens.add(len(sequence.tokens))

    def _begun(self, request: Request, now: float) -> None:
        assert request.first_scheduled is not None
        self.first_token.add(now - request.arrival)
        self.queue.add(request.first_scheduled - request.arrival)
        self.prefill.add(now - request.first_scheduled)
        self.prompt_tokens.add(len(request.prompt))

"""How long requests and steps take, and how much they carry: counted once a step."""

from collections import Counter
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
        self.decode = histogram(
            "request_decode_time_seconds", "First token to the last of all samples", REQUEST
        )
        self.step = histogram("engine_step_seconds", "A step, planned and computed", STEP)
        self.step_tokens = histogram(
            "iteration_tokens", "Tokens computed in a step, prompts' among them", STEP_TOKENS
        )
        self.request_tokens = histogram(
            "request_tokens", "Tokens of prompt and output when a sample ends", REQUEST_TOKENS
        )
        self.request_prompt = histogram(
            "request_prompt_tokens", "Tokens of the prompt when a request ends", REQUEST_TOKENS
        )
        self.request_output = histogram(
            "request_generation_tokens", "Tokens generated when a sample ends", REQUEST_TOKENS
        )
        self.longest_output = histogram(
            "request_max_num_generation_tokens",
            "Tokens of the longest sample when a request ends",
            REQUEST_TOKENS,
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
        sequences = [each.sequence for each in sampled]
        # Most had their last token in the step before: one wait for all of them.
        waits = Counter([sequence.last_token for sequence in sequences])
        for last, samples in waits.items():
            if last is not None:
                self.next_token.add(now - last, times=samples)
        for sequence in sequences:
            if sequence.last_token is None and sequence is sequence.request.leader:
                self._begun(sequence.request, now)
            sequence.last_token = now

    @harmless
    def ended(self, ended: Seq[Ended]) -> None:
        """Requests whose samples have all come to their end by themselves."""
        for request in (each.request for each in ended):
            assert request.finished is not None
            assert request.first_token is not None
            self.request.add(request.finished - request.arrival)
            self.decode.add(request.finished - request.first_token)
            self.request_prompt.add(len(request.prompt))
            self.longest_output.add(max(sequence.num_output for sequence in request.sequences))
            for sequence in request.sequences:
                self.request_tokens.add(len(sequence.tokens))
                self.request_output.add(sequence.num_output)

    def _begun(self, request: Request, now: float) -> None:
        assert request.first_scheduled is not None
        self.first_token.add(now - request.arrival)
        self.queue.add(request.first_scheduled - request.arrival)
        self.prefill.add(now - request.first_scheduled)
        self.prompt_tokens.add(len(request.prompt))

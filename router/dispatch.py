"""From a request that has passed every check to an answer that comes."""

from router.answer import Answer
from router.job import Job
from router.journey import Journey
from router.metrics import RouterMetrics
<<<<<<< 071116e9f2d4a17498590446e916f7b199d39e98
from router.retry_budget import RetryBudget
from router.sender import Sender
=======
from router.node import FrameCall
from router.placement import Placed, Placement
from router.prompt import Prompt
from router.request_size import RequestSize


@dataclass(frozen=True, slots=True)
class Job:
    """A request that has passed every check. Times are time.monotonic's, in seconds."""

    request: pb.GenerateRequest  # id, seed and max_tokens are set
    prompt: Prompt
    model: Model
    metadata: Iterable[Pair]
    arrived: float
    deadline: float

    @property
    def size(self) -> RequestSize:
        return RequestSize.of(self.request.sampling, self.prompt.count, self.model.block_size)


@dataclass(slots=True)
class _Refusals:
    """What the nodes said that did not take the request, and what to tell the client then."""

    errors: list[RequestError] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)

    def add(self, placed: Placed, error: RequestError) -> None:
        self.errors.append(error)
        self.tried.add(placed.node.address)

    def verdict(self) -> RequestError:
        """Full and gone are never mixed up: a full node is there, so it is worth coming back."""
        full = [each for each in self.errors if each.code == Code.RESOURCE_EXHAUSTED]
        if full:
            retry = min(each.retry_after or FULL_RETRY for each in full)
            return exhausted(f"all nodes are full: {full[-1].message}", retry)
        return unavailable(f"no cache node took the request: {self.errors[-1].message}")
>>>>>>> local


class Dispatcher:
    """Sends each request on its journey. All of them share one budget of retries."""

    def __init__(
        self, sender: Sender, budget: RetryBudget, metrics: RouterMetrics, resume_timeout: float
    ) -> None:
        self._sender = sender
        self._budget = budget
        self._metrics = metrics
        self._resume_timeout = resume_timeout

    async def open(self, job: Job) -> Answer:
<<<<<<< 071116e9f2d4a17498590446e916f7b199d39e98
        """An answer whose first frame is there; the caller closes it. Raises RequestError."""
        self._budget.deposit()
        journey = Journey(job, self._sender, self._budget, self._metrics, self._resume_timeout)
        call, first = await journey.start()
        return Answer(journey, call, first)
=======
        """An answer whose first frame is there; the caller closes it.

        Each node is tried at most once. Raises RESOURCE_EXHAUSTED when there are nodes and all are
        full, UNAVAILABLE when there are none; every other status of a node ends it as it came.
        """
        refusals = _Refusals()
        while True:
            placed = self._place(job, refusals)
            try:
                return await self._start(job, placed)
            except NodeFailed as failed:
                refusals.add(placed, failed.error)
                self._placement.refused(job.prompt, placed)
                self._metrics.retried(failed.error.code)

    def _place(self, job: Job, refusals: _Refusals) -> Placed:
        start = time.perf_counter_ns()
        attempt = len(refusals.errors) + 1
        try:
            placed = self._placement.place(
                job.request.request_id, job.prompt, job.model, attempt, job.size, refusals.tried
            )
        except RequestError as error:
            if error.code == Code.UNAVAILABLE and refusals.errors:
                raise refusals.verdict() from refusals.errors[-1]
            raise
        elapsed = time.perf_counter_ns() - start
        self._metrics.routed(self._placement.policy, placed.choice, job.prompt, elapsed)
        return placed

    async def _start(self, job: Job, placed: Placed) -> Answer:
        """Waits for the node's first frame; on any other end releases reservation and call."""
        report = self.report(job, placed)
        running = RunningCall(self._call(job, placed), placed, self._ledger)
        try:
            first = await running.first_frame()
            self._metrics.first_token(time.monotonic() - job.arrived)
            return Answer(running, report, job.prompt, job.model, first)
        except BaseException:
            running.close()
            raise

    def report(self, job: Job, placed: Placed) -> pb.RouteReport:
        """What the client is told of the choice."""
        report = self._placement.report(job.request, job.prompt, placed.choice)
        report.attempt = placed.reservation.attempt
        elapsed = int((time.monotonic() - job.arrived) * 1e6)
        report.router_us = max(elapsed - job.prompt.tokenize_us, 0)
        if job.request.explain:
            report.candidates.extend(
                self._placement.explain(job.prompt, placed.choice, placed.candidates)
            )
        return report

    def _call(self, job: Job, placed: Placed) -> FrameCall:
        remaining = job.deadline - time.monotonic()
        return placed.node.generate(
            self.node_request(job, placed), to_node(job.metadata), timeout=max(remaining, 0.0)
        )

    def node_request(self, job: Job, placed: Placed) -> cache_node_pb2.NodeGenerateRequest:
        """As the node gets it."""
        request = job.request
        return cache_node_pb2.NodeGenerateRequest(
            request_id=request.request_id,
            attempt=placed.reservation.attempt,
            router_id=self._router_id,
            dispatch_sequence=placed.reservation.sequence,
            epoch=placed.node.epoch,
            token_ids=job.prompt.token_ids,
            sampling=request.sampling,
            priority=request.priority,
            cache=request.cache,
            salt=job.prompt.salt,
        )
>>>>>>> local

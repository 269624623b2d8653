"""From a request that has passed every check to an answer that comes."""

from router.answer import Answer
from router.job import Job
from router.journey import Journey
from router.metrics import RouterMetrics
from router.retry_budget import RetryBudget
from router.sender import Sender


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
        """An answer whose first frame is there; the caller closes it. Raises RequestError."""
        self._budget.deposit()
        journey = Journey(job, self._sender, self._budget, self._metrics, self._resume_timeout)
        call, first = await journey.start()
        return Answer(journey, call, first, self._metrics)

"""A request that has passed every check."""

from collections.abc import Iterable
from typing import NamedTuple

from kvmesh.v1 import generate_pb2 as pb
from router.fleet import Model
from router.metadata import Pair
from router.prompt import Prompt
from router.request_size import RequestSize
from router.trace import UNTRACED, Trace


class Job(NamedTuple):
    """What is to be dispatched. Times are time.monotonic's, in seconds."""

    request: pb.GenerateRequest  # id, seed and max_tokens are set
    prompt: Prompt
    model: Model
    metadata: Iterable[Pair]
    arrived: float
    deadline: float
    size: RequestSize
    trace: Trace = UNTRACED

    @property
    def samples(self) -> int:
        """How many the client gets."""
        return self.request.sampling.n or 1

    @property
    def streams(self) -> bool:
        """Whether frames come before all samples have ended: with best_of above n none does."""
        return self.request.sampling.best_of <= self.samples

"""What is simulated."""

from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

from bench.load.config import POLICIES

MOST_NODES = 4096
SCHEDULING = ("adaptive", "strict")


class Failure(NamedTuple):
    """A node whose process is gone at a time, for so many seconds."""

    at: float
    node: str
    seconds: float

    @classmethod
    def parse(cls, text: str) -> "Failure":
        """AT:NODE:SECONDS. Raises ValueError for anything else."""
        at, _, rest = text.partition(":")
        node, _, seconds = rest.rpartition(":")
        try:
            failure = cls(float(at), node, float(seconds))
        except ValueError:
            failure = cls(-1.0, "", 0.0)
        if not (0 <= failure.at < inf and 0 < failure.seconds < inf and failure.node):
            raise ValueError(f"--fail must be AT:NODE:SECONDS as 12.5:node-3:30, is {text!r}")
        return failure


@dataclass(frozen=True, slots=True, kw_only=True)
class SimConfig:
    """Times in seconds, lengths in tokens, rates in requests a second. Names and defaults of what a
    router or a node has are theirs, but for the size of blocks: a trace tells no finer.
    """

    trace: Path | None = None
    nodes: int = 8
    requests: int = 2000
    seed: int = 0
    policy: tuple[str, ...] = ("prefix-aware", "least-loaded", "round-robin")
    rate: float | None = None  # None: what keeps the nodes half busy
    length_scale: float = 1.0
    profile: str = "cpu"
    blocks: int = 2000
    block_size: int = 512
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 1024
    scheduling_policy: str = "adaptive"
    index_delay: float = 0.0
    fail: tuple[str, ...] = ()
    max_queue: int = 512
    queue_timeout: float = 60.0
    slo_ttft: float = 60.0
    slo_itl: float = 1.0
    fit: Path | None = None
    as_json: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError that names the flag."""
        if (self.trace is None) == (self.fit is None):
            raise ValueError("--trace must be given, a recorded trace; or --fit, and not both")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"--max-num-batched-tokens must be at least --max-num-seqs ({self.max_num_seqs}), "
                f"is {self.max_num_batched_tokens}"
            )
        for name in ("length_scale", "queue_timeout", "slo_ttft", "slo_itl"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{_flag(name)} must be above 0, is {getattr(self, name)}")
        if self.rate is not None and not 0 < self.rate < inf:
            raise ValueError(f"--rate must be above 0, is {self.rate}")
        if not (self.index_delay >= 0 and isfinite(self.index_delay)):
            raise ValueError(f"--index-delay must be at least 0, is {self.index_delay}")
        self._check_policies()
        _ = self.failures

    @property
    def failures(self) -> list[Failure]:
        """In the order of their times."""
        failures = sorted(map(Failure.parse, self.fail))
        free_from: dict[str, float] = {}
        for each in failures:
            if each.node not in self.node_names:
                last = self.node_names[-1]
                raise ValueError(f"--fail: no node {each.node!r}, they are node-0 to {last}")
            if each.at < free_from.get(each.node, 0.0):
                raise ValueError(f"--fail: {each.node} is down already at {each.at:g}")
            free_from[each.node] = each.at + each.seconds
        return failures

    @property
    def node_names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]

    def _check_policies(self) -> None:
        if not self.policy:
            raise ValueError("--policy must be given at least once")
        for each in self.policy:
            if each not in POLICIES:
                raise ValueError(f"--policy must be one of {', '.join(POLICIES)}, is {each!r}")
        if len(set(self.policy)) < len(self.policy):
            raise ValueError("--policy must be different ones")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

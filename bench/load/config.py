"""What a load is: where it goes, what is asked, when, and how it is judged."""

from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from typing import Any

WORKLOADS = ("shared-prefix", "chat", "rag", "agents", "random", "mixed")
ARRIVALS = ("poisson", "bursty", "constant", "closed")
TRANSPORTS = ("grpc", "http")
FORMS = ("tokens", "text", "chat")
POLICIES = ("prefix-aware", "least-loaded", "round-robin", "random", "session")
SECRET = {"api_key"}  # fields that no report tells


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """Times in seconds, lengths in tokens, rates in requests a second."""

    target: str | None = None  # host:port is gRPC, a URL is HTTP; None: a fleet of its own
    fleet: str | None = None  # gRPC API to watch the nodes at, where `target` is HTTP
    model: str | None = None
    api_key: str | None = None
    tls: bool = False
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    timeout: float = 120.0

    workload: str = "shared-prefix"
    requests: int = 100
    seed: int = 0
    prefix_tokens: int = 1024
    prompt_tokens: int = 32
    output_tokens: int = 32
    prefixes: int = 2
    turns: int = 4
    branches: int = 2
    documents: int = 16
    think: float = 1.0
    prompts: str = "tokens"
    token_ids: str = "1000:32000"

    arrivals: str = "poisson"
    rate: float = 2.0
    concurrency: int = 8
    duration: float | None = None

    trace: Path | None = None
    speed: float = 1.0
    length_scale: float = 1.0
    trace_share: float = 1.0

    slo_ttft: float = 1.0
    slo_itl: float = 0.2
    slo_e2e: float | None = None
    max_lag: float = 0.05
    max_cpu: float = 0.8

    nodes: int = 2
    transport: str = "grpc"
    policy: str = "prefix-aware"
    enable_prefix_caching: bool = True

    out: Path | None = None
    compare: tuple[Path, Path] | None = None

    def __post_init__(self) -> None:
        """Raises ValueError that names the flag."""
        for name, value in asdict(self).items():
            if isinstance(value, float) and isnan(value):
                raise ValueError(f"--{name.replace('_', '-')} must be a number")
        for name in ("rate", "speed", "length_scale", "timeout"):
            if getattr(self, name) <= 0:
                raise ValueError(f"--{name.replace('_', '-')} must be above 0")
        if not 0 < self.trace_share <= 1:
            raise ValueError("--trace-share must be above 0 and at most 1")
        if self.trace is not None and self.arrivals == "closed":
            raise ValueError("--arrivals closed: a trace has its own times")
        if self.trace is not None and self.prompts == "chat":
            raise ValueError("--prompts chat: a trace tells nothing of messages")
        if self.fleet is not None and not self.over_http:
            raise ValueError("--fleet is for an HTTP --target: a gRPC one is watched itself")
        _ = self.vocabulary

    @property
    def over_http(self) -> bool:
        if self.target is None:
            return self.transport == "http"
        return self.target.startswith(("http://", "https://"))

    @property
    def closed(self) -> bool:
        """Whether an answer makes the next request, so that the server sets the pace."""
        return self.arrivals == "closed"

    @property
    def vocabulary(self) -> range:
        """Token ids that prompts are made of."""
        low, colon, high = self.token_ids.partition(":")
        if not (colon and low.isdecimal() and high.isdecimal() and int(low) < int(high)):
            raise ValueError(f"--token-ids must be LOW:HIGH, is {self.token_ids}")
        if int(high) > 1 << 32:
            raise ValueError(f"--token-ids must be 32-bit numbers, is {self.token_ids}")
        return range(int(low), int(high))

    @property
    def name(self) -> str:
        """Of the load, for titles."""
        if self.trace is not None:
            return f"trace {self.trace.name}"
        pace = (
            f"closed loop, {self.concurrency} at once"
            if self.closed
            else f"{self.arrivals}, {self.rate:g} requests/s"
        )
        return f"{self.workload}, {pace}"

    def as_json(self) -> dict[str, Any]:
        fields = {name: each for name, each in asdict(self).items() if name not in SECRET}
        return {
            name: str(each) if isinstance(each, Path) else each
            for name, each in fields.items()
            if name not in ("out", "compare")
        }

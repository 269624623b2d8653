"""The router's configuration: one frozen object, built at the edge by the command line."""

import re
from dataclasses import dataclass
from pathlib import Path

from kvmesh.certificates import CertificateFiles
from kvmesh.seconds import check_seconds
from kvmesh.traces_endpoint import check_traces_endpoint
from prefix_index.redis_url import check_redis_shards, check_redis_url
from router.node_names import PREFIX, Name
from router.patience import Patience
from router.policies import POLICIES

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """Times are in seconds, sizes in bytes. Raises ValueError that names the field."""

    nodes: tuple[str, ...]  # host:port of each cache node; dns:host:port for all that it lists
    http_host: str = "127.0.0.1"
    http_port: int = 8000  # 0 takes a free one
    grpc_host: str = "127.0.0.1"
    grpc_port: int = 50051  # 0 takes a free one
    tls_cert: Path | None = None  # PEM chain that both fronts show; None: plain text
    tls_key: Path | None = None  # of tls_cert
    tls_ca: Path | None = None  # clients must have a certificate from these roots
    node_tls_ca: Path | None = None  # roots of the nodes' certificates; None: nodes talk plain text
    node_tls_cert: Path | None = None  # that the router shows to nodes
    node_tls_key: Path | None = None  # of node_tls_cert
    admin_key_file: Path | None = None  # keys, one a line, of who may change the fleet
    admin_names: tuple[str, ...] = ()  # in client certificates of who may do so too
    fleet_key_file: Path | None = None  # secret shared with nodes, for leases; None: no leases
    lease_time: float = 10.0  # in which a lease can be claimed
    redis_url: str | None = None  # None: the index is fed by the nodes' state streams
    redis_group: str = "kvmesh"
    redis_shards: int = 1  # streams that the index is spread over, the same in a whole fleet
    policy: str = "prefix-aware"
    max_request_bytes: int = 4 << 20  # a larger request is refused unread
    max_header_bytes: int = 64 << 10  # of an HTTP request, its target included
    header_timeout: float = 10.0  # for the headers of an HTTP request to come
    body_timeout: float = 60.0  # and its body
    cors_allow_origins: tuple[str, ...] = ()  # whose pages may call the HTTP API; "*" for all
    max_in_flight: int = 1024  # requests; more get RESOURCE_EXHAUSTED
    tenants: str | None = None  # TOML file of who may send requests, or "redis"; None: everybody
    max_queue: int = 512  # requests that wait for room on a node; more get RESOURCE_EXHAUSTED
    queue_timeout: float = 60.0  # that a request waits at most
    low_watermark: float = 0.90  # share of a node's blocks at which it takes requests again
    high_watermark: float = 0.95  # share above which it takes none
    tokenizer_threads: int = 2
    request_timeout: float = 3600.0  # for a client that sets no deadline of its own
    connect_timeout: float = 10.0  # for a node to take a request
    first_token_timeout: float = 600.0  # then, for its first token; the node's queue is part of it
    token_timeout: float = 60.0  # between tokens
    resume_timeout: float = 10.0  # for a stream that lost its node to find another
    retry_share: float = 0.2  # retries that each request allows, all requests together
    node_silence: float = 2.0  # a node that has sent no state for so long gets nothing new
    stream_silence: float = 10.0  # and after so long its streams go on elsewhere
    slow_start: float = 10.0  # in which a node that joins comes to its full share of requests
    shutdown_grace: float = 30.0  # running streams may finish for so long
    log_requests: bool = False
    otlp_traces_endpoint: str | None = None  # OTLP collector over gRPC; None: no traces

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ValueError("nodes: must name at least one node as host:port")
        if len(set(self.nodes)) != len(self.nodes):
            raise ValueError("nodes: must be different from each other")
        for target in self.nodes:
            if target.startswith(PREFIX):
                Name.parse(target)
        if self.policy not in POLICIES:
            raise ValueError(f"policy: must be one of {', '.join(POLICIES)}, is {self.policy!r}")
        self._check_numbers()
        if self.tenants == "redis" and self.redis_url is None:
            raise ValueError("tenants: redis needs a redis_url")
        self._check_tls()
        check_traces_endpoint(self.otlp_traces_endpoint)
        check_redis_url(self.redis_url)
        check_redis_shards(self.redis_shards)
        for origin in self.cors_allow_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    "cors_allow_origins: must be * or an origin such as https://example.org, "
                    f"is {origin!r}"
                )

    def _check_tls(self) -> None:
        self.tls_files.check_server()
        if self.node_tls_files is None and self.node_tls_cert is not None:
            raise ValueError("node_tls_ca: must be set beside node_tls_cert")
        if self.admin_names and self.tls_ca is None:
            raise ValueError("tls_ca: must be set beside admin_names, which are in certificates")

    def _check_numbers(self) -> None:
        for field in (
            "max_request_bytes",
            "max_header_bytes",
            "max_in_flight",
            "max_queue",
            "tokenizer_threads",
        ):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, is {getattr(self, field)}")
        for field in (
            "request_timeout",
            "connect_timeout",
            "first_token_timeout",
            "token_timeout",
            "resume_timeout",
            "node_silence",
            "stream_silence",
            "header_timeout",
            "body_timeout",
            "lease_time",
            "queue_timeout",
        ):
            check_seconds(field, getattr(self, field))
        for field in ("slow_start", "shutdown_grace"):
            check_seconds(field, getattr(self, field), or_zero=True)
        if not self.retry_share >= 0:
            raise ValueError(f"retry_share: must be at least 0, is {self.retry_share}")
        if not 0 < self.low_watermark <= self.high_watermark <= 1:
            low, high = self.low_watermark, self.high_watermark
            raise ValueError(
                "low_watermark: must be above 0, at most high_watermark, and that at most 1: "
                f"they are {low} and {high}"
            )

    @property
    def http_scheme(self) -> str:
        return "http" if self.tls_cert is None else "https"

    @property
    def tls_files(self) -> CertificateFiles:
        """Of the fronts. Raises ValueError for half a pair."""
        return CertificateFiles(self.tls_cert, self.tls_key, self.tls_ca)

    @property
    def node_tls_files(self) -> CertificateFiles | None:
        """For the connections to nodes; None without TLS. Raises ValueError for half a pair."""
        files = CertificateFiles(
            self.node_tls_cert, self.node_tls_key, self.node_tls_ca, "node_tls_"
        )
        return files if files.ca is not None else None

    @property
    def patience(self) -> Patience:
        """With a node, stage by stage."""
        return Patience(self.connect_timeout, self.first_token_timeout, self.token_timeout)

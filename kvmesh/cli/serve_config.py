"""The configuration of a fleet on this host: what `kvmesh serve` is told."""

from dataclasses import dataclass, fields, replace
from pathlib import Path

from cache_node.config import NodeConfig
from kvmesh.addresses import host_and_port
from kvmesh.cli.flags import Flag
from kvmesh.cli.node_flags import (
    ENGINE_FLAGS,
    INDEX_FLAGS,
    LOG_FLAGS,
    METRICS_FLAGS,
    MODEL_FLAGS,
    NETWORK,
    TLS_FLAGS,
)
from kvmesh.cli.ports import free_ports
from kvmesh.cli.router_flags import (
    ADMIN_FLAGS,
    ADMISSION_FLAGS,
    FAILURE_FLAGS,
    HTTP_FLAGS,
    LEASE_FLAGS,
    POLICY_FLAGS,
)
from router.config import RouterConfig

NODE = NodeConfig()
ROUTER = RouterConfig(nodes=("the defaults, of no router:1",))
FLEET = "Fleet"
_ROUTERS = {"host", "tls_cert", "tls_key", "tls_ca"}  # fields of a node that mean the router here


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """A router and its nodes. Fields that a node or the router has too mean the same there."""

    nodes: int = 2
    policy: str = "prefix-aware"
    shutdown_grace: float = 10.0  # seconds, for running requests to finish
    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 50051
    max_header_bytes: int = ROUTER.max_header_bytes
    header_timeout: float = ROUTER.header_timeout
    body_timeout: float = ROUTER.body_timeout
    cors_allow_origins: tuple[str, ...] = ROUTER.cors_allow_origins
    node_silence: float = ROUTER.node_silence
    stream_silence: float = ROUTER.stream_silence
    connect_timeout: float = ROUTER.connect_timeout
    first_token_timeout: float = ROUTER.first_token_timeout
    token_timeout: float = ROUTER.token_timeout
    resume_timeout: float = ROUTER.resume_timeout
    retry_share: float = ROUTER.retry_share
    slow_start: float = ROUTER.slow_start
    node_port_base: int | None = None
    redis_url: str | None = NODE.redis_url
    redis_group: str = NODE.redis_group
    redis_shards: int = NODE.redis_shards
    tls_cert: Path | None = ROUTER.tls_cert
    tls_key: Path | None = ROUTER.tls_key
    tls_ca: Path | None = ROUTER.tls_ca
    admin_key_file: Path | None = ROUTER.admin_key_file
    admin_names: tuple[str, ...] = ROUTER.admin_names
    fleet_key_file: Path | None = ROUTER.fleet_key_file
    lease_time: float = ROUTER.lease_time
    tenants: str | None = ROUTER.tenants
    max_queue: int = ROUTER.max_queue
    queue_timeout: float = ROUTER.queue_timeout
    high_watermark: float = ROUTER.high_watermark
    low_watermark: float = ROUTER.low_watermark
    model: str = NODE.model
    device: str = NODE.device
    dtype: str = NODE.dtype
    kv_cache_dtype: str = NODE.kv_cache_dtype
    kv_scale_sample: Path | None = NODE.kv_scale_sample
    served_model_name: str | None = NODE.served_model_name
    max_model_len: int | None = NODE.max_model_len
    cache_dir: Path | None = NODE.cache_dir
    block_size: int = NODE.block_size
    num_blocks: int | None = NODE.num_blocks
    kv_cache_bytes: int | None = NODE.kv_cache_bytes
    kv_cache_ram_share: float | None = NODE.kv_cache_ram_share
    gpu_memory_utilization: float = NODE.gpu_memory_utilization
    swap_space: float = NODE.swap_space
    scheduling_policy: str = NODE.scheduling_policy
    preemption_mode: str = NODE.preemption_mode
    enable_prefix_caching: bool = NODE.enable_prefix_caching
    max_num_seqs: int = NODE.max_num_seqs
    max_num_batched_tokens: int = NODE.max_num_batched_tokens
    max_waiting: int = NODE.max_waiting
    threads: int = NODE.threads
    vllm_metrics: bool = NODE.vllm_metrics
    log_requests: bool = NODE.log_requests
    otlp_traces_endpoint: str | None = NODE.otlp_traces_endpoint

    def __post_init__(self) -> None:
        """What nodes and router would refuse, but only once the model is prepared."""
        self.node_config(0, port=0, metrics_port=0)
        self.router_config(list(range(1, self.nodes + 1)))

    def node_config(self, index: int, port: int, metrics_port: int) -> NodeConfig:
        """One node's configuration. Nodes listen on the loopback: only the router talks to them.
        They share the part of a GPU that they may use. TLS is the router's: what it says to
        nodes stays on the loopback.
        """
        shared = {f.name for f in fields(NodeConfig)} & {f.name for f in fields(self)} - _ROUTERS
        values = {name: getattr(self, name) for name in shared}
        values["gpu_memory_utilization"] = self.gpu_memory_utilization / self.nodes
        return NodeConfig(node_name=f"node-{index}", port=port, metrics_port=metrics_port, **values)

    def router_config(self, node_ports: list[int]) -> RouterConfig:
        """The configuration of the router over nodes on `node_ports`."""
        return RouterConfig(
            nodes=tuple(f"{NODE.host}:{port}" for port in node_ports),
            http_host=self.host,
            http_port=self.http_port,
            grpc_host=self.host,
            grpc_port=self.grpc_port,
            redis_url=self.redis_url,
            redis_group=self.redis_group,
            redis_shards=self.redis_shards,
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_ca=self.tls_ca,
            admin_key_file=self.admin_key_file,
            admin_names=self.admin_names,
            fleet_key_file=self.fleet_key_file,
            lease_time=self.lease_time,
            tenants=self.tenants,
            max_queue=self.max_queue,
            queue_timeout=self.queue_timeout,
            high_watermark=self.high_watermark,
            low_watermark=self.low_watermark,
            policy=self.policy,
            max_header_bytes=self.max_header_bytes,
            header_timeout=self.header_timeout,
            body_timeout=self.body_timeout,
            cors_allow_origins=self.cors_allow_origins,
            **{name: getattr(self, name) for name in FAILURE_FLAGS},
            shutdown_grace=self.shutdown_grace,
            log_requests=self.log_requests,
            otlp_traces_endpoint=self.otlp_traces_endpoint,
        )

    @property
    def grpc_target(self) -> str:
        """host:port where clients on this host reach the router by gRPC."""
        return host_and_port(self._reachable_host, self.grpc_port)

    @property
    def http_url(self) -> str:
        """Base URL of the HTTP API, for clients on this host."""
        scheme = "http" if self.tls_cert is None else "https"
        return f"{scheme}://{host_and_port(self._reachable_host, self.http_port)}"

    @property
    def _reachable_host(self) -> str:
        return "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host


def on_free_ports(config: ServeConfig | None = None) -> ServeConfig:
    """The configuration, moved to ports that nobody uses."""
    config = config or ServeConfig()
    http_port, grpc_port = free_ports(config.host, 2)
    return replace(config, http_port=http_port, grpc_port=grpc_port)


SERVE_FLAGS = {
    "nodes": Flag("How many cache nodes to start.", FLEET, least=1, most=64),
    **POLICY_FLAGS,
    "shutdown_grace": Flag("Seconds for running requests to finish at the end.", FLEET, least=0),
    "host": Flag("Address that the router listens on.", NETWORK),
    "http_port": Flag("Port of the OpenAI-compatible API.", NETWORK, least=1, most=65535),
    "grpc_port": Flag("Port of the gRPC API.", NETWORK, least=1, most=65535),
    "node_port_base": Flag(
        "Port of the first node; the next ones follow, then those of their metrics.",
        NETWORK,
        least=1,
        most=65535,
        default_text="free ports",
    ),
    **HTTP_FLAGS,
    **FAILURE_FLAGS,
    **INDEX_FLAGS,
    **TLS_FLAGS,
    **ADMIN_FLAGS,
    **LEASE_FLAGS,
    **ADMISSION_FLAGS,
    **MODEL_FLAGS,
    **ENGINE_FLAGS,
    **METRICS_FLAGS,
    **LOG_FLAGS,
}

"""The node's configuration: one frozen object, built at the edge by the command line."""

from dataclasses import dataclass
from os import sysconf
from pathlib import Path

from kvmesh.certificates import CertificateFiles
from kvmesh.seconds import check_seconds
from kvmesh.traces_endpoint import check_traces_endpoint
from prefix_index.redis_url import check_redis_shards, check_redis_url

DEFAULT_MODEL = "smollm2-135m-instruct"
SCHEDULING_POLICIES = ("adaptive", "strict", "fcfs-greedy", "static")
PREEMPTION_MODES = ("auto", "swap", "recompute")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16")
KV_CACHE_DTYPES = ("auto", "fp8", "int8", "int4")
MAX_SWAP_SPACE = 4096  # GiB
KV_CACHE_BYTES = 1 << 30
BLOCK_SIZES = range(1, 129)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Names and defaults are vLLM's where the meaning is the same. Raises ValueError that names the
    field.
    """

    model: str = DEFAULT_MODEL  # a built-in name, a local directory, or a GGUF file
    device: str = "auto"  # auto is cuda where torch sees a GPU
    dtype: str = "auto"  # of weights and activations; auto is bfloat16
    kv_cache_dtype: str = (
        "auto"  # auto: that of the weights; fp8, int8: half the bytes; int4: a third
    )
    kv_scale_sample: Path | None = None  # text that fp8's scales are made for; None: a built-in one
    served_model_name: str | None = None  # None: the base name of `model`
    node_name: str = "node-0"
    host: str = "127.0.0.1"
    port: int = 50061  # 0 takes a free one
    metrics_port: int | None = None  # Prometheus metrics over HTTP; None: none
    vllm_metrics: bool = False  # these also under vLLM's names
    tls_cert: Path | None = None  # PEM chain that gRPC and metrics show; None: plain text
    tls_key: Path | None = None  # of tls_cert
    tls_ca: Path | None = None  # routers must have a certificate from these roots
    router_names: tuple[str, ...] = ()  # in certificates of routers; (): any client is one
    fleet_key_file: Path | None = None  # secret shared with routers, for leases; None: no leases
    block_size: int = 16  # tokens
    num_blocks: int | None = None  # with the null block; None: as many as kv_cache_bytes holds
    kv_cache_bytes: int | None = None  # None: 1 GiB; on a GPU, what gpu_memory_utilization leaves
    kv_cache_ram_share: float | None = None  # of the machine's memory; goes before kv_cache_bytes
    gpu_memory_utilization: float = 0.9  # of a card's memory, for model, activations and KV pool
    max_model_len: int | None = None  # tokens; None: the model's context length
    max_num_seqs: int = 256
    # In one step. vLLM's 2,048 keeps a CPU core busy for about a second, in which nobody gets a
    # token and no cancel is heard; 1,024 take 0.4 s. Steps of 512 cost 1.03 of the CPU time.
    max_num_batched_tokens: int = 1024
    max_waiting: int = 1024  # requests beyond max_num_seqs, then RESOURCE_EXHAUSTED
    enable_prefix_caching: bool = True
    swap_space: float = 0.0  # GiB of a CPU pool below the KV pool; on a CPU node both are RAM
    preemption_mode: str = "auto"  # what a preempted request's KV becomes: swapped, recomputed
    scheduling_policy: str = "adaptive"  # what is promised to running requests
    threads: int = 1  # of torch; one less than there are cores, when others share them
    cache_dir: Path | None = None  # of converted models; None: $KVMESH_CACHE or ~/.cache/kvmesh
    redis_url: str | None = None  # the shared prefix index; None: only the direct feed
    redis_group: str = "kvmesh"
    redis_shards: int = 1  # streams that the index is spread over, the same in a whole fleet
    shutdown_grace: float = 30.0  # seconds in which running requests may finish
    log_requests: bool = False
    otlp_traces_endpoint: str | None = None  # OTLP collector over gRPC; None: no traces

    def __post_init__(self) -> None:
        check_traces_endpoint(self.otlp_traces_endpoint)
        check_redis_url(self.redis_url)
        check_redis_shards(self.redis_shards)
        self._check_choices()
        self._check_sizes()
        self.tls_files.check_server()
        if self.router_names and self.tls_ca is None:
            raise ValueError("tls_ca: must be set beside router_names, which are in certificates")

    def _check_choices(self) -> None:
        for field, choices in (
            ("device", DEVICES),
            ("dtype", DTYPES),
            ("kv_cache_dtype", KV_CACHE_DTYPES),
            ("scheduling_policy", SCHEDULING_POLICIES),
            ("preemption_mode", PREEMPTION_MODES),
        ):
            if getattr(self, field) not in choices:
                raise ValueError(
                    f"{field}: must be one of {', '.join(choices)}, is {getattr(self, field)!r}"
                )

    def _check_sizes(self) -> None:
        check_seconds("shutdown_grace", self.shutdown_grace, or_zero=True)
        if not 0 <= self.swap_space <= MAX_SWAP_SPACE:
            raise ValueError(
                f"swap_space: must be in [0, {MAX_SWAP_SPACE}] GiB, is {self.swap_space}"
            )
        if self.kv_cache_ram_share is not None and not 0 < self.kv_cache_ram_share <= 1:
            raise ValueError(f"kv_cache_ram_share: must be in (0, 1], is {self.kv_cache_ram_share}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization: must be in (0, 1], is {self.gpu_memory_utilization}"
            )
        if self.block_size not in BLOCK_SIZES:
            raise ValueError(f"block_size: must be in [1, 128] tokens, is {self.block_size}")
        for field in ("max_num_seqs", "max_num_batched_tokens", "threads", "kv_cache_bytes"):
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, is {getattr(self, field)}")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens: must be at least max_num_seqs ({self.max_num_seqs}), so "
                f"that every running request finds room in a step, is {self.max_num_batched_tokens}"
            )
        if self.num_blocks is not None and self.num_blocks < 2:
            raise ValueError(
                f"num_blocks: must be at least 2 (one is the null block), is {self.num_blocks}"
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ValueError(
                f"max_model_len: must be at least 2 (a prompt token and one more), "
                f"is {self.max_model_len}"
            )

    @property
    def tls_files(self) -> CertificateFiles:
        """Raises ValueError for half a pair."""
        return CertificateFiles(self.tls_cert, self.tls_key, self.tls_ca)

    @property
    def sized_in_bytes(self) -> bool:
        """Whether the size of the KV pool was asked for in bytes."""
        return self.kv_cache_bytes is not None or self.kv_cache_ram_share is not None

    @property
    def kv_pool_bytes(self) -> int:
        """Size of the KV pool, unless `num_blocks` says it, or the pool is what a GPU leaves."""
        if self.kv_cache_ram_share is None:
            return self.kv_cache_bytes or KV_CACHE_BYTES
        return int(self.kv_cache_ram_share * sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES"))

    @property
    def model_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or Path(self.model).name.removesuffix(".gguf")

"""The node's configuration: one frozen object, built at the edge by the command line."""

from dataclasses import dataclass
from pathlib import Path

DEFAULT_MODEL = "smollm2-135m-instruct"


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """Names and defaults are vLLM's where the meaning is the same."""

    model: str = DEFAULT_MODEL  # the built-in name, a local directory, or a GGUF file
    dtype: str = "auto"  # auto | float32 | bfloat16; auto is bfloat16
    served_model_name: str | None = None
    node_name: str = "node-0"
    host: str = "127.0.0.1"
    port: int = 50061
    metrics_port: int | None = None
    block_size: int = 16  # tokens
    num_blocks: int | None = None  # None: from kv_cache_bytes
    kv_cache_bytes: int = 1 << 30
    max_model_len: int | None = None  # None: the model's context length
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_waiting: int = 1024  # requests that wait on this node before it answers RESOURCE_EXHAUSTED
    enable_prefix_caching: bool = True
    threads: int = 1  # compute threads of torch
    cache_dir: Path | None = (
        None  # where converted models live; None: $KVMESH_CACHE or ~/.cache/kvmesh
    )
    redis_url: str | None = None
    redis_group: str = "kvmesh"
    log_requests: bool = False

"""What `--help` says about the flags of a cache node. Names and defaults are in NodeConfig."""

from cache_node.config import (
    DEVICES,
    DTYPES,
    KV_CACHE_DTYPES,
    PREEMPTION_MODES,
    SCHEDULING_POLICIES,
)
from kvmesh.cli.flags import Flag

MODEL, MEMORY, SCHEDULING, NETWORK, SECURITY, LOGGING = (
    "Model",
    "Memory",
    "Scheduling",
    "Network",
    "Security",
    "Logging",
)

MODEL_FLAGS = {
    "model": Flag(
        "A built-in name, a directory with config.json and safetensors, a GGUF file, or the name "
        "of a model on the Hugging Face hub (organisation/model).",
        MODEL,
    ),
    "device": Flag("What computes; auto is cuda where torch sees a GPU.", MODEL, choices=DEVICES),
    "dtype": Flag("Type of weights; auto is bfloat16.", MODEL, choices=DTYPES),
    "served_model_name": Flag(
        "Name that clients use for the model.", MODEL, default_text="the model's own"
    ),
    "max_model_len": Flag(
        "Most tokens of prompt and output together.", MODEL, least=2, default_text="the model's own"
    ),
    "cache_dir": Flag(
        "Where converted models are kept.",
        MODEL,
        env="KVMESH_CACHE",
        default_text="~/.cache/kvmesh",
    ),
}
ENGINE_FLAGS = {
    "kv_cache_dtype": Flag(
        "Type of cached keys and values; auto is that of the weights. fp8 and int8 hold twice the "
        "tokens, int4 three times.",
        MEMORY,
        choices=KV_CACHE_DTYPES,
    ),
    "kv_scale_sample": Flag(
        "Text like yours, that fp8 and int8 are calibrated on unless the model has scales.",
        MEMORY,
        default_text="a built-in one",
    ),
    "block_size": Flag("Tokens in a block of the KV cache.", MEMORY, least=1),
    "num_blocks": Flag(
        "Blocks in the KV pool; goes before --kv-cache-bytes.", MEMORY, least=1, default_text="auto"
    ),
    "kv_cache_bytes": Flag(
        "Size of the KV pool in bytes.",
        MEMORY,
        least=1,
        default_text="1 GiB; on a GPU, by --gpu-memory-utilization",
    ),
    "kv_cache_ram_share": Flag(
        "Size of the KV pool as a share of this machine's memory; goes before --kv-cache-bytes.",
        MEMORY,
        least=0,
        most=1,
        default_text="none",
    ),
    "gpu_memory_utilization": Flag(
        "Share of a GPU's memory for model, activations and KV pool. The nodes of one command "
        "divide it, as if all were on one GPU.",
        MEMORY,
        least=0,
        most=1,
    ),
    "swap_space": Flag(
        "GiB of a CPU pool below the KV pool: a second tier of the prefix cache, and room for "
        "preempted requests.",
        MEMORY,
        least=0,
    ),
    "enable_prefix_caching": Flag("Keep the KV of finished prompts for others.", MEMORY),
    "max_num_seqs": Flag("Most requests in one step.", SCHEDULING, least=1),
    "max_num_batched_tokens": Flag(
        "Most tokens in one step; longer prompts are computed in chunks of it.",
        SCHEDULING,
        least=1,
    ),
    "scheduling_policy": Flag(
        "What running requests are promised: adaptive expects some growth, strict commits all of "
        "it and never preempts for memory; fcfs-greedy and static are baselines.",
        SCHEDULING,
        choices=SCHEDULING_POLICIES,
    ),
    "preemption_mode": Flag(
        "What becomes of a preempted request's KV; auto takes the cheaper.",
        SCHEDULING,
        choices=PREEMPTION_MODES,
    ),
    "max_waiting": Flag(
        "Requests that may wait on a node; more are told to come back.", SCHEDULING, least=0
    ),
    "threads": Flag("Compute threads of a node.", SCHEDULING, least=1),
}
INDEX_FLAGS = {
    "redis_url": Flag(
        "Share the prefix index through this Redis, or a Redis Cluster: redis://127.0.0.1:6379/0, "
        "rediss://user@host1,host2?password_file=/run/secrets/redis. Without it routers learn of "
        "blocks from the nodes directly.",
        NETWORK,
        name="redis",
        default_text="none",
    ),
    "redis_group": Flag("Name of the fleet in Redis.", NETWORK),
    "redis_shards": Flag(
        "Streams that the index is spread over, some for each server of a Redis Cluster; the same "
        "on all routers and nodes.",
        NETWORK,
        least=1,
        most=1024,
    ),
}
TLS_FLAGS = {
    "tls_cert": Flag(
        "PEM certificate chain of this server; turns TLS on. Read again when it changes.",
        SECURITY,
        default_text="plain text",
    ),
    "tls_key": Flag("PEM key of the certificate.", SECURITY, default_text="none"),
    "tls_ca": Flag(
        "PEM roots: clients must have a certificate from them (mutual TLS).",
        SECURITY,
        default_text="none, anybody may connect",
    ),
}
FLEET_KEY_FLAGS = {
    "fleet_key_file": Flag(
        "File with a secret that all routers and nodes of the fleet share: lets clients stream "
        "straight from nodes (leases). openssl rand -hex 32 makes one.",
        SECURITY,
        default_text="none, no leases",
    ),
}
METRICS_FLAGS = {
    "vllm_metrics": Flag("Tell metrics under vLLM's names too, for its dashboards.", LOGGING)
}
LOG_FLAGS = {
    "log_requests": Flag("Log one line for each finished request.", LOGGING),
    "otlp_traces_endpoint": Flag(
        "OpenTelemetry collector (OTLP over gRPC) that gets the spans of each request, such as "
        "http://127.0.0.1:4317. OTEL_EXPORTER_OTLP_ENDPOINT says it too.",
        LOGGING,
        also_env=("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"),
        default_text="none, no traces",
    ),
}

NODE_FLAGS = {
    **MODEL_FLAGS,
    **ENGINE_FLAGS,
    "node_name": Flag("Name of the node, unique in its fleet.", NETWORK),
    "host": Flag("Address to listen on.", NETWORK),
    "port": Flag("Port of the gRPC service.", NETWORK, least=0, most=65535),
    "metrics_port": Flag(
        "Port of the Prometheus metrics.", NETWORK, least=0, most=65535, default_text="none"
    ),
    "shutdown_grace": Flag("Seconds for running requests to finish at the end.", NETWORK, least=0),
    **INDEX_FLAGS,
    **TLS_FLAGS,
    "router_names": Flag(
        "Name in the certificate of a router. Once for each. Others may only use leases.",
        SECURITY,
        name="router-name",
        default_text="any client is taken for a router",
    ),
    **FLEET_KEY_FLAGS,
    **METRICS_FLAGS,
    **LOG_FLAGS,
}

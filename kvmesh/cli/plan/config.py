"""What `kvmesh plan` is asked, and what its help says of it."""

from dataclasses import dataclass, fields
from pathlib import Path

from cache_node.config import NodeConfig
from cache_node.plan.hardware import GIB, Hardware, find_card, machine_memory
from kvmesh.cli.flags import Flag
from kvmesh.cli.node_flags import ENGINE_FLAGS, MODEL_FLAGS

NODE = NodeConfig()
PLAN_FIELDS = (
    "max_model_len",
    "dtype",
    "kv_cache_dtype",
    "block_size",
    "num_blocks",
    "kv_cache_bytes",
    "kv_cache_ram_share",
    "gpu_memory_utilization",
    "swap_space",
    "max_num_seqs",
    "max_num_batched_tokens",
)
"""Of a node's configuration: what decides over memory."""
MOST_RAM = 1 << 20  # GiB
ASKED, HARDWARE, SHOWN = "What is asked", "Hardware", "What is shown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig:
    """Fields that a node has too mean the same there. Raises ValueError that names the field."""

    model: str = NODE.model
    max_model_len: int | None = NODE.max_model_len
    concurrency: int = 16
    gpu: str | None = None  # None: the CPU of this machine
    gpus: int | None = None  # None: tp x pp
    tp: int = 1
    pp: int = 1
    ram: float | None = None  # GiB of a machine without GPU; None: this one's
    dtype: str = NODE.dtype
    kv_cache_dtype: str = NODE.kv_cache_dtype
    block_size: int = NODE.block_size
    num_blocks: int | None = NODE.num_blocks
    kv_cache_bytes: int | None = NODE.kv_cache_bytes
    kv_cache_ram_share: float | None = NODE.kv_cache_ram_share
    gpu_memory_utilization: float = NODE.gpu_memory_utilization
    swap_space: float = NODE.swap_space
    max_num_seqs: int = NODE.max_num_seqs
    max_num_batched_tokens: int = NODE.max_num_batched_tokens
    sweep: bool = False
    trace: Path | None = None
    plot: Path | None = None
    json: bool = False

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency: must be at least 1, is {self.concurrency}")
        if self.ram is not None and not 0 < self.ram <= MOST_RAM:
            raise ValueError(f"ram: must be above 0 and at most {MOST_RAM} GiB, is {self.ram}")
        self.node_config()
        self.hardware()
        if self.plot is not None and not self.sweep and self.trace is None:
            raise ValueError("plot: needs sweep or trace, which are what it shows")

    def node_config(self) -> NodeConfig:
        """Of each node."""
        shared = {f.name for f in fields(NodeConfig)} & {f.name for f in fields(self)}
        values = {name: getattr(self, name) for name in shared}
        if self.ram is not None and self.kv_cache_ram_share is not None:
            values["kv_cache_bytes"] = int(self.kv_cache_ram_share * int(self.ram * GIB))
            values["kv_cache_ram_share"] = None  # a node would take the share of its own machine
        return NodeConfig(**values)

    def hardware(self) -> Hardware:
        return Hardware(
            card=None if self.gpu is None else find_card(self.gpu),
            ram=machine_memory() if self.ram is None else int(self.ram * GIB),
            gpus=self.tp * self.pp if self.gpus is None else self.gpus,
            tp=self.tp,
            pp=self.pp,
        )


PLAN_FLAGS = {
    "model": Flag(
        "A known model (llama-3-70b, meta-llama/Meta-Llama-3-70B-Instruct), a directory with "
        "config.json, or a GGUF file.",
        ASKED,
        positional=True,
    ),
    "max_model_len": MODEL_FLAGS["max_model_len"],
    "concurrency": Flag("Requests at once that should fit, each as long.", ASKED, least=1),
    "gpu": Flag(
        "A card (l4, a100-40, a100-80, l40s, h100, h200, b200, mi300x), or its memory in GiB.",
        HARDWARE,
        default_text="none: this machine's CPU",
    ),
    "gpus": Flag("How many cards; more than tp x pp are replicas.", HARDWARE, least=1),
    "tp": Flag("Cards that share each layer (tensor parallelism).", HARDWARE, least=1),
    "pp": Flag("Stages that share the layers (pipeline parallelism).", HARDWARE, least=1),
    "ram": Flag(
        "GiB of memory of a machine without a GPU.",
        HARDWARE,
        default_text="this machine's",
    ),
    "dtype": MODEL_FLAGS["dtype"],
    **{name: ENGINE_FLAGS[name] for name in PLAN_FIELDS if name in ENGINE_FLAGS},
    "sweep": Flag("A table over lengths and types of the KV.", SHOWN),
    "trace": Flag(
        "A trace in Mooncake's format: what share of its prompts a pool of each size hits.",
        SHOWN,
        default_text="none",
    ),
    "plot": Flag("PNG of the sweep or the trace; needs kvmesh[load].", SHOWN, default_text="none"),
    "json": Flag("One JSON object on stdout.", SHOWN),
}

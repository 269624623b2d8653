"""What does not change while a node runs, as its metrics tell it."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import sysconf
from pathlib import Path

import torch
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from kvmesh.v1 import cache_node_pb2 as pb

LABELS = (
    *("node", "version", "model", "device", "dtype", "kv_cache_dtype", "block_size", "attention"),
    *("prefix_caching", "scheduling_policy", "preemption_mode", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "threads", "pool_sized_by"),
)
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Sizes in bytes."""

    labels: Mapping[str, str]
    block_bytes: int
    pool_bytes: int
    weight_bytes: int
    memory_limit: int  # what model, activations and KV may take together


def node_facts(config: NodeConfig, executor: ModelExecutor, info: pb.NodeInfo) -> NodeFacts:
    values = (
        *(info.name, info.version, info.model, info.device, info.dtype),
        *(executor.layout.dtype, executor.layout.block_size, executor.attention_kernel),
        *("on" if config.enable_prefix_caching else "off", config.scheduling_policy),
        *(config.preemption_mode, info.max_model_len, info.max_num_seqs),
        *(info.max_num_batched_tokens, config.threads, _sized_by(config, info.device)),
    )
    return NodeFacts(
        {label: str(value) for label, value in zip(LABELS, values, strict=True)},
        block_bytes=executor.layout.bytes_per_block,
        pool_bytes=executor.pool.raw.nbytes,
        weight_bytes=executor.weight_bytes,
        memory_limit=_memory_limit(config, executor.device),
    )


class FactGauges(Collector):
    def __init__(self, facts: NodeFacts) -> None:
        self._facts = facts

    def collect(self) -> Iterable[Metric]:
        facts = self._facts
        info = GaugeMetricFamily(
            "kvmesh_node_info", "1, with what the node is in the labels", labels=tuple(facts.labels)
        )
        info.add_metric(list(facts.labels.values()), 1)
        yield info
        yield GaugeMetricFamily(
            "kvmesh_kv_pool_bytes", "Size of the KV pool", value=facts.pool_bytes
        )
        yield GaugeMetricFamily(
            "kvmesh_model_weights_bytes", "Size of the weights", value=facts.weight_bytes
        )
        yield GaugeMetricFamily(
            "kvmesh_memory_limit_bytes",
            "What model, activations and KV may take: the host's memory, or the share of the GPU's "
            "that --gpu-memory-utilization gives",
            value=facts.memory_limit,
        )


def _sized_by(config: NodeConfig, device: str) -> str:
    """The field of the configuration that decides on the size of the KV pool."""
    if config.num_blocks is not None:
        return "num_blocks"
    if config.kv_cache_ram_share is not None:
        return "kv_cache_ram_share"
    on_gpu = device == "cuda" and config.kv_cache_bytes is None
    return "gpu_memory_utilization" if on_gpu else "kv_cache_bytes"


def _memory_limit(config: NodeConfig, device: torch.device) -> int:
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        return int(total * config.gpu_memory_utilization)
    memory = sysconf("SC_PAGE_SIZE") * sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # no cgroups; "max"
        memory = min(memory, int(CGROUP_LIMIT.read_text()))
    return memory

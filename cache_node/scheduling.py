"""The scheduler that a configuration asks for."""

from cache_node.commitment import Adaptive, Commitment, Greedy, Static, Strict
from cache_node.config import NodeConfig
from cache_node.executor import ModelExecutor
from cache_node.limits import Limits
from cache_node.memory import KvMemory
from cache_node.preemption import PreemptionCosts, PreemptionMode
from cache_node.scheduler import Scheduler

COMMITMENTS: dict[str, type[Commitment]] = {
    "adaptive": Adaptive,
    "strict": Strict,
    "fcfs-greedy": Greedy,
    "static": Static,
}


def make_scheduler(config: NodeConfig, executor: ModelExecutor) -> Scheduler:
    """Over the memory that `executor` has; block 0 of each of its pools is the null block."""
    memory = KvMemory(
        executor.num_blocks - 1, config.block_size, executor.num_cpu_blocks - 1, executor.swap
    )
    limits = Limits(
        max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
    )
    costs = PreemptionCosts(
        PreemptionMode(config.preemption_mode),
        executor.layout.bytes_per_block,
        executor.copy_bytes_per_second,
    )
    return Scheduler(memory, limits, COMMITMENTS[config.scheduling_policy](), costs)

"""What one GPU has to hold: weights and activations, and the KV pool with what is left."""

from dataclasses import dataclass

from cache_node.config import NodeConfig
from cache_node.gpu_memory import MemoryProfile
from cache_node.plan.hardware import GIB
from cache_node.plan.shape import ModelShape
from cache_node.sizing import WEIGHT_DTYPES

OUTSIDE = GIB
"""An estimate: kernels' code, libraries, captured graphs."""

_WEIGHT_BITS = {"bfloat16": 16, "float32": 32}


@dataclass(frozen=True, slots=True)
class Budget:
    """Bytes of one GPU."""

    total: int
    share: int  # that a node may use
    weights: int
    activations: int  # an estimate; a node measures them when it starts
    outside: int  # likewise

    @property
    def left(self) -> int:
        """For the KV pool; less than 0 where the model does not fit."""
        return self.share - self.weights - self.activations - self.outside


def weight_bytes(shape: ModelShape, parameters: int, config: NodeConfig) -> int:
    """Of so many weights, in the dtype that a node loads them in, or as they were quantised."""
    bits = shape.weight_bits or _WEIGHT_BITS[WEIGHT_DTYPES[config.dtype]]
    return -(-parameters * bits // 8)


def gpu_budget(
    shape: ModelShape, parameters: int, config: NodeConfig, longest: int, total: int, tp: int
) -> Budget:
    """On a card of `total` bytes that nobody else uses."""
    return Budget(
        total=total,
        share=int(total * config.gpu_memory_utilization),
        weights=weight_bytes(shape, parameters, config),
        activations=activation_bytes(shape, config, longest, tp),
        outside=OUTSIDE,
    )


def left_for_kv(budget: Budget, config: NodeConfig) -> int:
    """By the node's own arithmetic. Raises its ValueError where the model does not fit."""
    profile = MemoryProfile(
        total=budget.total,
        free=budget.total,
        peak=budget.weights + budget.activations,
        graphs=0,
        outside=budget.outside,
    )
    return profile.kv_cache_bytes(config.gpu_memory_utilization)


def activation_bytes(shape: ModelShape, config: NodeConfig, longest: int, tp: int) -> int:
    """An estimate of the largest step: of each token a few copies of its state and of what the MLP
    makes of it, of each request its logits in float32, twice.
    """
    tokens = min(config.max_num_batched_tokens, config.max_num_seqs * longest)
    width = 6 * shape.hidden_size + 3 * shape.intermediate_size // tp
    element = _WEIGHT_BITS[WEIGHT_DTYPES[config.dtype]] // 8
    logits = min(config.max_num_seqs, tokens) * shape.vocab_size * 4 * 2
    return tokens * width * element + logits

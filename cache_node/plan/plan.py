"""What fits: blocks, sequences and tokens, of one model on some hardware."""

from dataclasses import dataclass, replace
from functools import partial

from cache_node.config import NodeConfig
from cache_node.plan.budget import Budget, gpu_budget, left_for_kv, weight_bytes
from cache_node.plan.hardware import Hardware
from cache_node.plan.shape import ModelShape
from cache_node.plan.shard import Shard, shards_of
from cache_node.sizing import cpu_pool_blocks, fitting_max_model_len, kv_blocks, kv_layout
from kernels.kv_layout import KvLayout


@dataclass(frozen=True, slots=True)
class Stage:
    """The GPUs that hold the same layers, or the machine; all figures are of one of them."""

    shard: Shard
    layout: KvLayout
    budget: Budget | None  # None: a machine without GPUs

    def windowed_bytes(self, tokens: int) -> int:
        """Of one sequence, if blocks that all windows have left were freed."""
        layer = replace(self.layout, num_layers=1)
        blocks = layer.blocks_for(tokens)
        held = [
            # A window that does not begin with a block touches one more.
            blocks if window is None else min(blocks, layer.blocks_for(window - 1) + 1)
            for window in self.shard.windows
        ]
        return sum(held) * layer.bytes_per_block


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Of one replica; `hardware` says how many there are.

    `refusal` is what a node would say instead of starting; None where it would start.
    """

    shape: ModelShape
    hardware: Hardware
    config: NodeConfig
    layout: KvLayout  # of the whole model
    stages: tuple[Stage, ...]
    num_blocks: int  # of the pool with its null block; 0 where not even weights fit
    refusal: str | None

    @property
    def usable_blocks(self) -> int:
        """What a started node tells as its blocks: the null block holds nothing."""
        return max(0, self.num_blocks - 1)

    @property
    def cpu_blocks(self) -> int:
        """Likewise, of the CPU pool below."""
        return cpu_pool_blocks(self.config, self.layout) - 1

    @property
    def tokens(self) -> int:
        return self.usable_blocks * self.layout.block_size

    @property
    def max_model_len(self) -> int:
        return self.config.max_model_len or self.shape.context

    @property
    def weights(self) -> int:
        """Bytes of the whole model."""
        return weight_bytes(self.shape, self.shape.parameters.total, self.config)

    @property
    def gpu_block_bytes(self) -> int:
        """Of one block on the GPU with the most layers."""
        return max(stage.layout.bytes_per_block for stage in self.stages)

    def kv_bytes(self, tokens: int, sequences: int) -> int:
        """Of so many sequences, in whole blocks: once, however many GPUs hold a copy."""
        return sequences * self.layout.blocks_for(tokens) * self.layout.bytes_per_block

    def windowed_kv_bytes(self, tokens: int) -> int:
        """As `kv_bytes` of one sequence, if blocks that all windows have left were freed."""
        whole = Stage(shards_of(self.shape)[0], self.layout, None)
        return whole.windowed_bytes(tokens)

    def concurrency(self, tokens: int) -> int:
        """Sequences of so many tokens that the pool holds at once."""
        return self.usable_blocks // self.layout.blocks_for(tokens)

    def windowed_concurrency(self, tokens: int) -> int:
        """As `concurrency`, if blocks that all windows have left were freed."""
        return min(
            self.usable_blocks * stage.layout.bytes_per_block // stage.windowed_bytes(tokens)
            for stage in self.stages
        )

    def longest(self, sequences: int) -> int:
        """Tokens that so many sequences may have each, at most the model's context."""
        blocks = self.usable_blocks // sequences
        return min(self.shape.context, blocks * self.layout.block_size)

    @property
    def machine_bytes(self) -> int:
        """What a node without a GPU takes of the machine's memory, once its pools are full."""
        blocks = self.num_blocks + self.cpu_blocks + 1
        return self.weights + blocks * self.layout.bytes_per_block


def make_plan(shape: ModelShape, hardware: Hardware, config: NodeConfig) -> Plan:
    """`config` is that of each node. Raises ValueError that names the field."""
    stages = tuple(
        _stage(shape, shard, hardware, config)
        for shard in shards_of(shape, hardware.tp, hardware.pp)
    )
    layout = kv_layout(shards_of(shape)[0], config)
    refusal: str | None
    try:
        blocks = min(_blocks(stage, config) for stage in stages)
    except ValueError as error:
        blocks, refusal = 0, str(error)
    else:
        refusal = _refusal(shape, stages[0].layout, config, blocks)
    return Plan(
        shape=shape,
        hardware=hardware,
        config=config,
        layout=layout,
        stages=stages,
        num_blocks=blocks,
        refusal=refusal,
    )


def _stage(shape: ModelShape, shard: Shard, hardware: Hardware, config: NodeConfig) -> Stage:
    budget = None
    if hardware.card is not None:
        longest = config.max_model_len or shape.context
        budget = gpu_budget(
            shape, shard.parameters, config, longest, hardware.card.memory, hardware.tp
        )
    return Stage(shard, kv_layout(shard, config), budget)


def _blocks(stage: Stage, config: NodeConfig) -> int:
    """As the node counts them. Raises ValueError where not even one fits."""
    if stage.budget is None:
        return kv_blocks(config, stage.layout)
    return kv_blocks(config, stage.layout, partial(left_for_kv, stage.budget, config))


def _refusal(shape: ModelShape, layout: KvLayout, config: NodeConfig, blocks: int) -> str | None:
    try:
        fitting_max_model_len(config, shape.context, layout, blocks)
    except ValueError as error:
        return str(error)
    return None

"""What to do about a plan that does not fit, tried out, and which flags suit which work."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cache_node.config import KV_CACHE_DTYPES, NodeConfig
from cache_node.plan.hardware import GIB
from cache_node.plan.plan import Plan, make_plan
from cache_node.sizing import cpu_pool_blocks
from kvmesh.cli.plan.config import PLAN_FIELDS
from kvmesh.cli.presets import PRESETS

MOST_GPUS = 64
SPARE_RAM = 0.8
"""Share of a machine's memory that weights and pools may take."""


def fits(plan: Plan, concurrency: int) -> bool:
    """Whether a node starts, and holds so many of its longest requests at once."""
    return (
        plan.refusal is None
        and plan.concurrency(plan.max_model_len) >= concurrency
        and (plan.hardware.card is not None or plan.machine_bytes <= plan.hardware.ram)
    )


def ways_to_fit(plan: Plan, concurrency: int) -> list[str]:
    """Each is enough, by a plan of its own, but the last, which says what there is room for now.
    None where all fits already.
    """
    if fits(plan, concurrency):
        return []
    return [*_smaller_kv(plan, concurrency), *_more_memory(plan, concurrency), *_less(plan)]


def _smaller_kv(plan: Plan, concurrency: int) -> Iterator[str]:
    for dtype in KV_CACHE_DTYPES[1:]:
        other = _try(plan, replace(plan.config, kv_cache_dtype=dtype))
        if other is not None and fits(other, concurrency):
            held = other.concurrency(plan.max_model_len)
            yield f"--kv-cache-dtype {dtype}: {held} such requests at once"


def _more_memory(plan: Plan, concurrency: int) -> Iterator[str]:
    if plan.hardware.card is None or plan.config.num_blocks or plan.config.sized_in_bytes:
        yield from _larger_pool(plan, concurrency)
    if plan.hardware.card is not None:
        yield from _more_cards(plan, concurrency)


def _more_cards(plan: Plan, concurrency: int) -> Iterator[str]:
    """The smallest number that is enough; else the smallest that holds the model."""
    holds = None
    tp = plan.hardware.tp * 2
    while tp <= MOST_GPUS:
        other = _try(plan, plan.config, tp)
        if other is not None and fits(other, concurrency):
            yield f"--tp {tp}: {other.concurrency(plan.max_model_len)} such requests at once"
            return
        if holds is None and other is not None and other.num_blocks:
            holds = other
        tp *= 2
    if holds is not None and not plan.num_blocks:
        shorter = f"--tp {holds.hardware.tp} --max-model-len {holds.longest(concurrency)}"
        yield f"{shorter}: {concurrency} requests at once"


def _larger_pool(plan: Plan, concurrency: int) -> Iterator[str]:
    blocks = concurrency * plan.layout.blocks_for(plan.max_model_len) + 1
    pool = blocks * plan.gpu_block_bytes
    flag = f"--kv-cache-bytes {pool}"
    if plan.config.num_blocks is not None:  # it goes before bytes
        flag = f"--num-blocks {blocks}"
    elif plan.config.kv_cache_ram_share is not None:
        flag += " instead of --kv-cache-ram-share"
    if pool <= _room(plan):
        yield f"{flag}: exactly {concurrency} such requests at once"
    elif plan.hardware.card is None:
        needed = (plan.machine_bytes - plan.num_blocks * plan.layout.bytes_per_block + pool) / GIB
        has = f"this one has {plan.hardware.ram / GIB:,.0f} GiB"
        yield f"a machine with {needed / SPARE_RAM:,.0f} GiB, and {flag}; {has}"


def _room(plan: Plan) -> int:
    """Bytes that the KV pool could have, on each GPU or in the machine's memory."""
    budgets = [stage.budget for stage in plan.stages if stage.budget is not None]
    if budgets:
        return min(budget.left for budget in budgets)
    others = plan.machine_bytes - plan.num_blocks * plan.layout.bytes_per_block
    return int(SPARE_RAM * plan.hardware.ram) - others


def _less(plan: Plan) -> Iterator[str]:
    if plan.hardware.card is None and plan.machine_bytes > plan.hardware.ram:
        return
    if held := plan.concurrency(plan.max_model_len):
        yield f"fewer: {held} such requests at once"
    elif longest := plan.longest(1):
        yield f"--max-model-len {longest}: one request at a time"


def _try(plan: Plan, config: NodeConfig, tp: int | None = None) -> Plan | None:
    """None where the model does not go with it."""
    hardware = plan.hardware
    if tp is not None:
        hardware = replace(hardware, tp=tp, gpus=tp * hardware.pp)
    try:
        return make_plan(plan.shape, hardware, config)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Flags for one kind of work, beside the preset of that name."""

    preset: str
    flags: tuple[str, ...]
    max_concurrency: int  # of the longest requests, that the pool holds then


def recommend(plan: Plan) -> list[Recommendation]:
    """For each preset: the pool that this hardware can give, and no more requests in a step than
    it holds.
    """
    return [found for name in PRESETS if (found := _for_preset(plan, name)) is not None]


def _for_preset(plan: Plan, name: str) -> Recommendation | None:
    """None where one request of the longest does not fit."""
    values = PRESETS[name].values
    known = {field: value for field, value in values.items() if hasattr(plan.config, field)}
    found = _try(plan, _sized(plan, replace(plan.config, **known)))
    if found is None or found.refusal is not None:
        return None
    held = found.concurrency(plan.max_model_len)
    config = replace(found.config, max_num_seqs=min(held, found.config.max_num_seqs))
    return Recommendation(name, tuple(_own_flags(config, replace(NodeConfig(), **known))), held)


def _own_flags(config: NodeConfig, preset: NodeConfig) -> Iterator[str]:
    """Where the configuration is not what the preset alone gives."""
    for field in PLAN_FIELDS:
        value = getattr(config, field)
        if value != getattr(preset, field):
            yield from (f"--{field.replace('_', '-')}", str(value))


def _sized(plan: Plan, config: NodeConfig) -> NodeConfig:
    """On a CPU, where the pool has no size yet: for as many requests as the preset runs, as far as
    the machine has memory.
    """
    if plan.hardware.card or config.sized_in_bytes or config.num_blocks is not None:
        return config
    other = _try(plan, config)
    layout = plan.layout if other is None else other.layout
    blocks = config.max_num_seqs * layout.blocks_for(plan.max_model_len) + 1
    below = cpu_pool_blocks(config, layout) * layout.bytes_per_block
    room = int(SPARE_RAM * plan.hardware.ram) - plan.weights - below
    least = 2 * layout.bytes_per_block
    return replace(config, kv_cache_bytes=max(least, min(blocks * layout.bytes_per_block, room)))

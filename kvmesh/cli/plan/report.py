"""A plan in words: each sum with its factors, what fits, and what to do where it does not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cache_node.plan.budget import Budget
from cache_node.plan.hardware import GIB
from cache_node.plan.plan import Plan
from kernels.kv_layout import ELEMENT_BITS, SCALE_BYTES
from kvmesh.cli.plan.advice import Recommendation, fits, ways_to_fit
from kvmesh.cli.plan.units import element_width, exact, plural, size
from kvmesh.cli.presets import PRESETS, as_flags

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    pairs: Sequence[Pair]  # what, and how much


def sections(plan: Plan, concurrency: int, recommended: Sequence[Recommendation]) -> list[Section]:
    """The whole report."""
    found = [
        Section("Model", list(_model(plan))),
        Section("KV of one token", list(_token(plan))),
        Section("What is asked", list(_asked(plan, concurrency))),
        Section("Memory", list(_memory(plan))),
        Section("What fits", list(_fits(plan, concurrency))),
        Section("What a node does today, and what the model allows", list(_today(plan))),
        Section(
            "Recommended flags of a node, by kind of work", list(_recommended(plan, recommended))
        ),
    ]
    return [section for section in found if section.pairs]


def _model(plan: Plan) -> Iterator[Pair]:
    shape = plan.shape
    yield "from", shape.source
    kv = "" if shape.latent else f", {shape.num_kv_heads} KV heads of {shape.head_dim}"
    yield "shape", f"{shape.num_layers} layers, {shape.num_heads} heads{kv}: {shape.attention}"
    windows = [window for window in shape.windows if window is not None]
    if windows:
        yield "windows", f"{len(windows)} layers see the last {windows[0]:,} tokens alone"
    yield "context", plural(shape.context, "token")
    width = element_width(plan.weights * 8 // shape.parameters.total)
    yield "weights", f"{shape.parameters.total:,} × {width} = {exact(plan.weights)}"


def _token(plan: Plan) -> Iterator[Pair]:
    layout, shape = plan.layout, plan.shape
    width = element_width(ELEMENT_BITS[layout.dtype])
    elements = layout.element_bytes // layout.block_size
    if shape.latent is None:
        factors = f"2 (key, value) × {layout.num_layers} layers × {layout.num_kv_heads} KV heads"
        factors += f" × {layout.head_dim} elements"
    else:
        latent = shape.latent
        factors = f"{layout.num_layers} layers × ({latent.rank} latent + {latent.rope} rotated)"
    yield "elements", f"{factors} × {width} ({layout.dtype}) = {elements:,} bytes"
    if layout.num_scales:
        scales = layout.num_scales * SCALE_BYTES // layout.block_size
        yield "scales", f"{layout.num_scales // layout.block_size} × {SCALE_BYTES} = {scales:,}"
    if layout.num_codes:
        yield "codes", f"{layout.num_codes:,} bytes a block"
    yield "a token", exact(layout.bytes_per_token)
    yield f"a block of {layout.block_size}", exact(layout.bytes_per_block)
    if len(plan.stages) > 1 or plan.hardware.tp > 1:
        one = max(stage.layout.bytes_per_token for stage in plan.stages)
        yield "a token on one GPU", exact(one) + _replicated(plan)


def _replicated(plan: Plan) -> str:
    if plan.shape.latent is not None and plan.hardware.tp > 1:
        return "; a latent belongs to all heads: each of the tp GPUs holds all of it"
    if plan.hardware.tp > plan.shape.num_kv_heads:
        copies = plan.hardware.tp // plan.shape.num_kv_heads
        return f"; fewer KV heads than GPUs: {copies} GPUs hold the same"
    return ""


def _asked(plan: Plan, concurrency: int) -> Iterator[Pair]:
    tokens, layout = plan.max_model_len, plan.layout
    blocks = layout.blocks_for(tokens)
    yield (
        f"{plural(concurrency, 'request')} of {tokens:,} tokens",
        (
            f"{concurrency} × {plural(blocks, 'block')} × {layout.bytes_per_block:,} bytes = "
            f"{exact(plan.kv_bytes(tokens, concurrency))}"
        ),
    )


def _memory(plan: Plan) -> Iterator[Pair]:
    budget = min(
        (stage.budget for stage in plan.stages if stage.budget is not None),
        key=lambda each: each.left,
        default=None,
    )
    yield from _of_machine(plan) if budget is None else _of_gpu(plan, budget)
    if not plan.num_blocks:
        yield "blocks", "none"
        return
    yield "blocks", f"{plan.usable_blocks:,} and a null block, {plural(plan.tokens, 'token')}"
    if plan.hardware.replicas > 1:
        every = plan.hardware.replicas * plan.tokens
        yield "replicas", f"{plan.hardware.replicas}, {plural(every, 'token')} in all"


def _of_machine(plan: Plan) -> Iterator[Pair]:
    yield "this node", f"CPU, {plan.hardware.ram / GIB:,.1f} GiB of memory"
    yield "KV pool", exact(plan.num_blocks * plan.layout.bytes_per_block)
    if plan.config.swap_space:
        yield "CPU pool below", exact((plan.cpu_blocks + 1) * plan.layout.bytes_per_block)
    yield "with the weights", exact(plan.machine_bytes)


def _of_gpu(plan: Plan, budget: Budget) -> Iterator[Pair]:
    assert plan.hardware.card is not None
    used = plan.config.gpu_memory_utilization
    of = f" (the fullest of {plan.hardware.tp * plan.hardware.pp})" if len(plan.stages) > 1 else ""
    yield "a card", f"{plan.hardware.card.name}, {size(budget.total)}{of}"
    yield f"× {used:g}", f"{size(budget.share)} (--gpu-memory-utilization)"
    yield "- weights", size(budget.weights)
    yield "- activations", f"{size(budget.activations)}, an estimate: a node measures them"
    yield "- the rest", f"{size(budget.outside)}, an estimate: kernels, libraries, graphs"
    yield "= left", size(budget.left) if budget.left > 0 else f"{size(-budget.left)} too little"
    if plan.num_blocks:
        yield "KV pool", f"{exact(plan.num_blocks * plan.gpu_block_bytes)} on a GPU"


def _fits(plan: Plan, concurrency: int) -> Iterator[Pair]:
    if plan.refusal is not None:
        yield "✗ a node would not start", plan.refusal
    if plan.hardware.card is None and plan.machine_bytes > plan.hardware.ram:
        yield "✗ memory", f"{size(plan.machine_bytes)} of {size(plan.hardware.ram)}"
    if plan.num_blocks:
        held = plan.concurrency(plan.max_model_len)
        mark = "✓" if fits(plan, concurrency) else "✗"
        asked = f"{concurrency:,} asked"
        if plan.hardware.replicas > 1:
            asked += f", on each of {plan.hardware.replicas} replicas"
        yield f"{mark} at once", f"{held:,} of {plan.max_model_len:,} tokens, {asked}"
        if held > plan.config.max_num_seqs:
            yield "in one step", f"{plan.config.max_num_seqs:,} (--max-num-seqs)"
        longest = plan.longest(concurrency)
        yield f"longest, {concurrency} at once", plural(longest, "token")
    for number, way in enumerate(ways_to_fit(plan, concurrency)):
        yield ("or" if number else "to make it fit"), way


def _today(plan: Plan) -> Iterator[Pair]:
    shape = plan.shape
    if shape.unserved is not None:
        yield "✗ not served", f"{shape.unserved.split(';')[0]}: figures are what it would take"
    if shape.latent is not None:
        every = shape.num_layers * shape.latent.expanded * 2
        yield "without MLA", f"{exact(every)} a token in bfloat16: all heads' keys and values"
    if plan.hardware.tp * plan.hardware.pp > 1:
        yield "✗ tp, pp", "a node runs on one GPU today: figures are what it would take"
    if any(window is not None for window in shape.windows):
        tokens = plan.max_model_len
        yield (
            "today",
            (
                f"{size(plan.kv_bytes(tokens, 1))} for {tokens:,} tokens: a node keeps all blocks "
                f"of a request, {plan.concurrency(tokens):,} at once"
            ),
        )
        yield (
            "with windows freed",
            (
                f"{size(plan.windowed_kv_bytes(tokens))}, {plan.windowed_concurrency(tokens):,} at "
                "once: layers with a window need no more than that"
            ),
        )


def _recommended(plan: Plan, recommended: Sequence[Recommendation]) -> Iterator[Pair]:
    for each in recommended:
        preset = PRESETS[each.preset]
        yield each.preset, " ".join(["--preset", each.preset, *each.flags])
        held = f"room for {each.max_concurrency:,} of {plan.max_model_len:,} tokens"
        yield "", f"{preset.purpose}; {held}; sets {as_flags(preset.values)}"

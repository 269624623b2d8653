"""A plan for programs: keys that stay."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cache_node.plan.plan import Plan
from kvmesh.cli.plan.advice import Recommendation, fits, ways_to_fit
from kvmesh.cli.presets import PRESETS


def as_json(plan: Plan, concurrency: int, recommended: Sequence[Recommendation]) -> dict[str, Any]:
    """Sizes in bytes, lengths in tokens. `blocks` and `cpu_blocks` are
    what a started node tells."""
    tokens = plan.max_model_len
    return {
        "model": _model(plan),
        "hardware": _hardware(plan),
        "kv": {
            "dtype": plan.layout.dtype,
            "block_size": plan.layout.block_size,
            "bytes_per_token": plan.layout.bytes_per_token,
            "bytes_per_block": plan.layout.bytes_per_block,
            "gpu_bytes_per_token": max(s.layout.bytes_per_token for s in plan.stages),
            "gpu_bytes_per_block": plan.gpu_block_bytes,
        },
        "blocks": plan.usable_blocks,
        "cpu_blocks": plan.cpu_blocks,
        "tokens": plan.tokens,
        "request": {
            "max_model_len": tokens,
            "concurrency": concurrency,
            "blocks_each": plan.layout.blocks_for(tokens),
            "kv_bytes": plan.kv_bytes(tokens, concurrency),
            "fits": fits(plan, concurrency),
        },
        "max_concurrency": plan.concurrency(tokens),
        "longest_at_concurrency": plan.longest(concurrency),
        "windows_freed": _windowed(plan, tokens),
        "refusal": plan.refusal,
        "ways_to_fit": ways_to_fit(plan, concurrency),
        "recommended": {
            each.preset: {
                "flags": list(each.flags),
                "preset": dict(PRESETS[each.preset].values),
                "max_concurrency": each.max_concurrency,
            }
            for each in recommended
        },
    }


def _model(plan: Plan) -> dict[str, Any]:
    shape = plan.shape
    windows = Counter(window for window in shape.windows if window is not None)
    return {
        "name": shape.name,
        "source": shape.source,
        "attention": shape.attention,
        "layers": shape.num_layers,
        "heads": shape.num_heads,
        "kv_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "latent_elements": shape.latent.elements if shape.latent else None,
        "windows": [{"tokens": window, "layers": count} for window, count in windows.items()],
        "context": shape.context,
        "parameters": shape.parameters.total,
        "weight_bytes": plan.weights,
        "unserved": shape.unserved,
    }


def _hardware(plan: Plan) -> dict[str, Any]:
    hardware = plan.hardware
    budgets = [stage.budget for stage in plan.stages if stage.budget is not None]
    tightest = min(budgets, key=lambda each: each.left, default=None)
    return {
        "gpu": hardware.card.name if hardware.card else None,
        "gpus": hardware.gpus if hardware.card else 0,
        "tp": hardware.tp,
        "pp": hardware.pp,
        "replicas": hardware.replicas,
        "ram_bytes": hardware.ram,
        "gpu_budget": None
        if tightest is None
        else {
            "total": tightest.total,
            "share": tightest.share,
            "weights": tightest.weights,
            "activations_estimate": tightest.activations,
            "outside_estimate": tightest.outside,
            "left": tightest.left,
        },
    }


def _windowed(plan: Plan, tokens: int) -> dict[str, int] | None:
    """None for a model without windows."""
    if all(window is None for window in plan.shape.windows):
        return None
    return {
        "kv_bytes_each": plan.windowed_kv_bytes(tokens),
        "max_concurrency": plan.windowed_concurrency(tokens),
    }

"""Named settings for a kind of work: what `--preset` sets, and what `kvmesh plan` recommends."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from kvmesh import log


@dataclass(frozen=True, slots=True)
class Preset:
    """`values` by field of the configurations of nodes and routers; a command takes those that it
    has.
    """

    purpose: str
    values: Mapping[str, Any]


PRESETS: Mapping[str, Preset] = {
    "chat": Preset(
        "short turns, many at once",
        {  # Small chunks: a long prompt keeps nobody waiting. A chat that pauses moves to RAM.
            "max_num_seqs": 64,
            "max_num_batched_tokens": 512,
            "swap_space": 2.0,
            "queue_timeout": 30.0,
        },
    ),
    "rag": Preset(
        "long documents",
        {  # Large chunks, twice the tokens in a block, RAM for documents, patience.
            "kv_cache_dtype": "int8",
            "max_num_seqs": 32,
            "max_num_batched_tokens": 2048,
            "swap_space": 4.0,
            "queue_timeout": 120.0,
            "first_token_timeout": 1200.0,
        },
    ),
    "low-latency": Preset(
        "few at once, and soon",
        {  # None preempted, room left on each node; what cannot be served soon is refused.
            "scheduling_policy": "strict",
            "max_num_seqs": 8,
            "max_num_batched_tokens": 256,
            "max_waiting": 16,
            "max_queue": 32,
            "queue_timeout": 5.0,
            "high_watermark": 0.85,
            "low_watermark": 0.8,
        },
    ),
    "batch": Preset(
        "output a second before all else",
        {  # As many at once as there is memory for, and queues that hold the rest.
            "kv_cache_dtype": "int8",
            "max_num_seqs": 256,
            "max_num_batched_tokens": 2048,
            "max_waiting": 8192,
            "max_queue": 8192,
            "max_in_flight": 16384,
            "queue_timeout": 3600.0,
            "first_token_timeout": 3600.0,
        },
    ),
}


def apply_preset(
    name: str, values: Mapping[str, Any], chosen: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`values` as the preset has them, and what it has set: not the fields that the user has
    `chosen` on the command line or in the environment, nor those that the command has not.
    """
    wanted = PRESETS[name].values
    applied = {
        field: value for field, value in wanted.items() if field in values and field not in chosen
    }
    return {**values, **applied}, applied


def tell_preset(name: str, applied: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    """On stderr: a line of JSON where the log is such, else words. Both are by option."""
    if log.wants_json():
        line = {"event": "preset", "preset": name, "sets": dict(applied), "kept": dict(kept)}
        typer.echo(json.dumps(line), err=True)
        return
    typer.echo(f"preset {name} sets {as_flags(applied) or 'nothing'}", err=True)
    if kept:
        typer.echo(f"your own: {as_flags(kept)}", err=True)


def as_flags(values: Mapping[str, Any]) -> str:
    """By option or field, as on a command line."""
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in values.items())

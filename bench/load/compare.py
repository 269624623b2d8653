"""Two loads beside each other, from their JSON."""

import json
from pathlib import Path
from typing import Any

from bench.load.measures import MEASURES, caveats
from bench.load.summary import SCHEMA

SAME = (
    "workload", "trace", "trace_share", "speed", "length_scale", "requests", "seed", "arrivals",
    "rate", "concurrency", "duration", "prefix_tokens", "prompt_tokens", "output_tokens",
    "prefixes", "turns", "branches", "documents", "think", "prompts", "token_ids",
)  # fmt: skip
"""Fields of a config that make the requests."""


def read_summary(path: Path) -> dict[str, Any]:
    """Raises OSError, and ValueError for what is no report of a load."""
    try:
        summary = json.loads(path.read_text())
        schema = summary["schema"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{path} is not the result.json of a load") from error
    if schema != SCHEMA:
        raise ValueError(f"{path} is of schema {schema}, this kvmesh reads {SCHEMA}")
    assert isinstance(summary, dict)
    return summary


def compared_rows(first: dict[str, Any], second: dict[str, Any]) -> list[list[str]]:
    """A row a measure: name, both values, and the second over the first with its verdict."""
    rows = []
    for measure in MEASURES:
        values = measure.of(first), measure.of(second)
        if values != (None, None):
            shown = map(measure.show, values)
            rows.append([measure.label, *shown, _ratio(*values, measure.better)])
    return rows


def _ratio(first: float | None, second: float | None, better: int) -> str:
    if first is None or second is None or not first:
        return "–"
    ratio = second / first
    if not better or abs(ratio - 1) < 0.02:
        return f"{ratio:.2f}×"
    return f"{ratio:.2f}× {'better' if (ratio > 1) == (better > 0) else 'worse'}"


def comparison_notes(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Why they may not be comparable, and what each of them says of itself."""
    other = [
        f"{name} {first['config'][name]} and {second['config'][name]}"
        for name in SAME
        if first["config"].get(name) != second["config"].get(name)
    ]
    notes = [f"NOT THE SAME LOAD: {'; '.join(other)}"] if other else []
    if first["machine"] != second["machine"]:
        names = [n for n in first["machine"] if first["machine"][n] != second["machine"].get(n)]
        notes.append(f"Another {', '.join(names)}.")
    for name, summary in (("a", first), ("b", second)):
        notes += [f"{name}: {caveat}" for caveat in caveats(summary)]
    return notes

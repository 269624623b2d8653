"""Every request of a load, a line of CSV each."""

import csv
from collections.abc import Iterable
from pathlib import Path

from bench.load.outcome import Outcome

COLUMNS = (
    "number", "session", "planned_s", "sent_s", "first_token_s", "last_token_s", "ended_s",
    "ttft_s", "mean_itl_s", "e2e_s", "prompt_tokens", "cached_tokens", "output_tokens",
    "wanted_tokens", "node", "status", "message",
)  # fmt: skip


def write_csv(path: Path, outcomes: Iterable[Outcome]) -> None:
    """In the order of their numbers; times in seconds from the start of the load."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(map(_row, sorted(outcomes, key=lambda each: each.turn.number)))


def _row(each: Outcome) -> list[object]:
    times = (each.sent, each.first, each.last, each.ended, each.ttft, each.mean_gap, each.e2e)
    return [
        each.turn.number,
        each.turn.session,
        _seconds(each.planned),
        *map(_seconds, times),
        each.prompt_tokens or each.turn.prompt_tokens,
        each.cached_tokens,
        each.output_tokens,
        each.turn.output,
        each.node,
        each.status,
        each.message,
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"

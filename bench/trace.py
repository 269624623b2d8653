"""Requests of a recorded trace, in one of two formats.

Mooncake's: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` and
`hash_ids`, a number for each 512 tokens of the prompt. Azure's: CSV with `TIMESTAMP`,
`ContextTokens` and `GeneratedTokens`, which tells nothing of what prompts share.
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path

from prefix_index.keys import TOKEN_BYTES

BLOCK_SIZE = 512  # tokens behind one hash id


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """Two prompts are the same up to where their `blocks` differ."""

    arrival: float  # seconds from the start of the trace
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...]  # the last one may not be full; none where the trace tells none

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.output_tokens) < 0:
            raise ValueError(f"lengths of {self.prompt_tokens} and {self.output_tokens} tokens")

    @property
    def token_ids(self) -> bytes:
        """A prompt with these blocks, packed: the trace tells no tokens."""
        packed = b"".join(
            block.to_bytes(TOKEN_BYTES, "little") * BLOCK_SIZE for block in self.blocks
        )
        return packed[: self.prompt_tokens * TOKEN_BYTES]


def read_trace(path: Path, count: int) -> list[TracedRequest]:
    """The first `count` requests. Raises OSError, and ValueError for another format or fewer."""
    with path.open() as lines:
        requests = _mooncake(path, islice(filter(str.strip, lines), count))
    if len(requests) < count:
        raise ValueError(f"{path}: has {len(requests)} requests, {count} are wanted")
    return requests


def read_any_trace(path: Path) -> list[TracedRequest]:
    """All of it, in the order of arrival; Azure's format where the file is a .csv. Raises OSError,
    and ValueError for another format.
    """
    with path.open(newline="") as lines:
        if path.suffix == ".csv":
            return _azure(path, lines)
        requests = _mooncake(path, filter(str.strip, lines))
        return sorted(requests, key=lambda request: request.arrival)


def _mooncake(path: Path, lines: Iterable[str]) -> list[TracedRequest]:
    try:
        return [_request(json.loads(line)) for line in lines]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a trace in Mooncake's format: {error!r}") from error


def _azure(path: Path, lines: Iterable[str]) -> list[TracedRequest]:
    try:
        requests = sorted(map(_azure_request, csv.DictReader(lines)), key=lambda each: each.arrival)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: not a trace in Azure's format: {error!r}") from error
    return [replace(each, arrival=each.arrival - requests[0].arrival) for each in requests]


def _azure_request(row: dict[str, str]) -> TracedRequest:
    whole, _, digits = row["TIMESTAMP"].partition(".")
    arrival = datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{digits or 0}")
    return TracedRequest(arrival, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ())


def _request(entry: dict[str, object]) -> TracedRequest:
    match entry:
        case {
            "timestamp": int(milliseconds),
            "input_length": int(prompt),
            "output_length": int(output),
            "hash_ids": list(blocks),
        } if len(blocks) == -(-prompt // BLOCK_SIZE):
            return TracedRequest(milliseconds / 1000, prompt, output, tuple(map(int, blocks)))
    raise ValueError(f"no request: {str(entry)[:100]}")

"""Requests of a recorded trace, in Mooncake's format: one JSON object a line with `timestamp` (ms),
`input_length`, `output_length` and `hash_ids`, a number for each 512 tokens of the prompt.
"""

import json
from dataclasses import dataclass
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
    blocks: tuple[int, ...]  # the last one may not be full

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
        try:
            requests = [_request(json.loads(line)) for line in islice(lines, count)]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a trace in Mooncake's format: {error!r}") from error
    if len(requests) < count:
        raise ValueError(f"{path}: has {len(requests)} requests, {count} are wanted")
    return requests


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

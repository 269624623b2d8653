"""From the model's hidden states to what each row of a step is owed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from cache_node.logprobs import FloatArray, token_logprobs
from cache_node.sampler import choose
from cache_node.sampling import Choice, TokenLogprobs
from cache_node.step_plan import Row, RowResult

LOGITS_AT_ONCE = 1 << 23
"""32 MiB of them. A long prompt's would be gigabytes: 8,192 tokens of a vocabulary of 49,152 take
1.5 GiB.
"""

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [rows, hidden_size] → logits [rows, vocab_size], float32."""


def wanted_tokens(rows: Sequence[Row]) -> list[int]:
    """The tokens of the flattened step whose hidden states `row_results` needs, in its order: the
    last of each row that has samples, then all that have a target.
    """
    starts = np.cumsum([0, *(len(row.token_ids) for row in rows)]).tolist()
    wanted = [end - 1 for row, (_, end) in zip(rows, pairwise(starts), strict=True) if row.samples]
    for row, start in zip(rows, starts[:-1], strict=True):
        wanted.extend(range(start, start + len(row.targets)))
    return wanted


def row_results(
    rows: Sequence[Row], hidden: torch.Tensor, head: Head, vocab_size: int
) -> list[RowResult]:
    """One result a row. `hidden` has the states of `wanted_tokens`, one below the other."""
    at_once = max(1, LOGITS_AT_ONCE // vocab_size)
    logits = (position for part in torch.split(hidden, at_once) for position in _host(head(part)))
    choices = [_choices(row, logits) for row in rows]
    scores = [_scores(row, logits) for row in rows]
    return [RowResult(*parts) for parts in zip(choices, scores, strict=True)]


def _choices(row: Row, logits: Iterator[FloatArray]) -> tuple[Choice, ...]:
    if not row.samples:
        return ()
    position = next(logits)
    return tuple(choose(position, spec) for spec in row.samples)


def _scores(row: Row, logits: Iterator[FloatArray]) -> tuple[TokenLogprobs, ...]:
    top = row.prompt_logprobs
    return tuple(token_logprobs(next(logits), target, top) for target in row.targets)


def _host(logits: torch.Tensor) -> FloatArray:
    array: FloatArray = logits.cpu().numpy()
    return array

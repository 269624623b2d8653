"""From the model's hidden states to what each row of a step is owed."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from cache_node.logprobs import FloatArray, token_logprobs
from cache_node.sampler import choose, takes_greatest
from cache_node.sampling import Choice, TokenLogprobs
from cache_node.step_plan import Row, RowResult

LOGITS_AT_ONCE = 1 << 23
"""32 MiB of them. A long prompt's would be gigabytes: 8,192 tokens of a vocabulary of 49,152 take
1.5 GiB.
"""

Head = Callable[[torch.Tensor], torch.Tensor]
"""Hidden states [rows, hidden_size] → logits [rows, vocab_size], float32."""

Position = FloatArray | int
"""What came down from the device of one wanted token: its logits, or where all that are asked for
take the most probable token, that one.
"""


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
    rows: Sequence[Row], hidden: torch.Tensor, head: Head, vocab_size: int, *, greedy_there: bool
) -> list[RowResult]:
    """One result a row. `hidden` has the states of `wanted_tokens`, one below the other.

    With `greedy_there` the device of `hidden` finds the most probable tokens, so that their logits
    stay there: a greedy row brings eight bytes down, any other its logits, four bytes for each
    token of the vocabulary. Not on the CPU, where numpy is faster.
    """
    at_once = max(1, LOGITS_AT_ONCE // vocab_size)
    greedy = [greedy_there and all(map(takes_greatest, r.samples)) for r in rows if r.samples]
    greedy += [False] * (len(hidden) - len(greedy))
    parts = zip(torch.split(hidden, at_once), _split(greedy, at_once), strict=True)
    positions = (position for part, kinds in parts for position in _come_down(head(part), kinds))
    choices = [_choices(row, positions) for row in rows]
    scores = [_scores(row, positions) for row in rows]
    return [RowResult(*parts) for parts in zip(choices, scores, strict=True)]


def _choices(row: Row, positions: Iterator[Position]) -> tuple[Choice, ...]:
    if not row.samples:
        return ()
    position = next(positions)
    if isinstance(position, int):
        return tuple(Choice(position) for _ in row.samples)
    return tuple(choose(position, spec) for spec in row.samples)


def _scores(row: Row, positions: Iterator[Position]) -> tuple[TokenLogprobs, ...]:
    top, found = row.prompt_logprobs, []
    for target in row.targets:
        logits = next(positions)
        assert not isinstance(logits, int), "scores need all logits"
        found.append(token_logprobs(logits, target, top))
    return tuple(found)


def _come_down(logits: torch.Tensor, greedy: Sequence[bool]) -> Iterator[Position]:
    """Of each row of `logits`, in order. Equal logits go to the lowest token id, here as there."""
    if not any(greedy):
        yield from logits.cpu().numpy()
        return
    best = logits.argmax(dim=-1).tolist()
    others = [i for i, there in enumerate(greedy) if not there]
    whole = iter(logits[others].cpu().numpy() if others else ())
    for token, there in zip(best, greedy, strict=True):
        yield int(token) if there else next(whole)


def _split(flags: list[bool], at_once: int) -> list[list[bool]]:
    """As torch.split: of nothing, one empty part."""
    return [flags[i : i + at_once] for i in range(0, max(1, len(flags)), at_once)]

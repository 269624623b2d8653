"""Log-probabilities of a position, from the logits as the model gave them."""

import math

import numpy as np
from numpy.typing import NDArray

from cache_node.sampling import TokenLogprobs

FloatArray = NDArray[np.float32]


def token_logprobs(logits: FloatArray, token: int, top: int) -> TokenLogprobs:
    """The logarithm of `token`'s probability, its rank, and the `top` most probable tokens.

    `logits` [vocab_size] float32. Tied tokens rank by id, lowest first, as greedy choice takes
    them: so the token that it takes has rank 1 and leads the list.
    """
    total = log_sum_exp(logits)
    value = logits[token]
    ahead = np.count_nonzero(logits > value) + np.count_nonzero(logits[:token] == value)
    best = _best(logits, min(top, len(logits)))
    return TokenLogprobs(
        logprob=float(value) - total,
        rank=1 + int(ahead),
        top=tuple((int(other), float(logits[other]) - total) for other in best),
    )


def log_sum_exp(logits: FloatArray) -> float:
    """log Σ exp(logit): what makes logits log-probabilities."""
    largest = logits.max()
    return float(largest) + math.log(np.exp(logits - largest).sum(dtype=np.float64))


def _best(logits: FloatArray, count: int) -> NDArray[np.intp]:
    """The ids of the `count` largest, largest first, of tied ones the lowest id first."""
    if count == 0:
        return np.empty(0, dtype=np.intp)
    place = len(logits) - count
    candidates = np.flatnonzero(logits >= np.partition(logits, place)[place])
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]

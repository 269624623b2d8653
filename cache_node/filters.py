"""Temperature, min-p, top-k and top-p: which tokens may be drawn, and with what weight.

What stays is decided by a threshold, so that tied tokens stay or go together and nothing depends on
the order of a sort.
"""

import math

import numpy as np
from numpy.typing import NDArray

from cache_node.logprobs import FloatArray
from cache_node.sampling import SamplingParams

COLDEST = 1e-30
"""Any lower temperature leaves the same tokens, and a quotient by it would be no number."""


def kept(scores: FloatArray, params: SamplingParams) -> tuple[NDArray[np.intp] | None, FloatArray]:
    """The ids of the tokens that stay, ascending (None: all), and the weight of each, at most 1.

    `scores` [vocab_size] are logits after bias and penalties, some of them may be -inf; one at
    least is finite.
    """
    scaled = _tempered(scores, params.temperature)
    lowest = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < len(scaled):
        place = len(scaled) - params.top_k
        lowest = max(lowest, float(np.partition(scaled, place)[place]))
    tokens = np.flatnonzero(scaled >= lowest) if lowest > -math.inf else None
    weights = np.exp(scaled if tokens is None else scaled[tokens])
    if params.top_p < 1.0:
        inside = np.flatnonzero(weights >= _nucleus(weights, params.top_p))
        tokens, weights = inside if tokens is None else tokens[inside], weights[inside]
    return tokens, weights


def _tempered(scores: FloatArray, temperature: float) -> FloatArray:
    """Scores over temperature, shifted so that the largest is 0 at any temperature."""
    with np.errstate(over="ignore"):  # to -inf, whose weight is 0 as that of any such token
        scaled: FloatArray = scores - scores.max()
        scaled /= np.float32(max(temperature, COLDEST))
    return scaled


def _nucleus(weights: FloatArray, top_p: float) -> float:
    """The weight of the token with which the heaviest ones first reach `top_p` of the total.

    Tokens so light that all of them together could not fill the rest are left out of the sort: for
    most distributions that is nearly the whole vocabulary.
    """
    total = float(weights.sum(dtype=np.float64))
    light = (1.0 - top_p) * total / len(weights)
    heaviest_first = np.sort(weights[weights >= light])[::-1]
    reached = heaviest_first.cumsum(dtype=np.float64)
    edge = int(reached.searchsorted(top_p * total))
    return float(heaviest_first[min(edge, len(heaviest_first) - 1)])

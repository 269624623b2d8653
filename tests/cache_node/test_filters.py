"""Temperature, min-p, top-k and top-p against transformers."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from cache_node.filters import kept
from cache_node.sampling import SamplingParams


def weights(logits: np.ndarray, **params) -> torch.Tensor:
    """The probability of each token of the vocabulary."""
    tokens, some = kept(logits, SamplingParams(**params))
    full = torch.zeros(len(logits), dtype=torch.float64)
    full[slice(None) if tokens is None else torch.tensor(tokens)] = torch.tensor(some).double()
    return full / full.sum()


def warped(logits: np.ndarray, temperature, min_p, top_k, top_p) -> torch.Tensor:
    """The same in transformers, in vLLM's order."""
    warpers = [TemperatureLogitsWarper(temperature), MinPLogitsWarper(min_p)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1.0 else []
    scores = torch.tensor(logits).double()[None]
    for warper in warpers:
        scores = warper(None, scores)
    return scores[0].softmax(dim=0)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("min_p", [0.0, 0.02])
@pytest.mark.parametrize("top_k", [0, 1, 20])
@pytest.mark.parametrize("top_p", [0.05, 0.9, 0.999, 1.0])
def test_the_distribution_is_that_of_transformers(temperature, min_p, top_k, top_p):
    logits = np.random.default_rng(top_k).normal(0.0, 3.0, 700).astype(np.float32)
    found = weights(logits, temperature=temperature, min_p=min_p, top_k=top_k, top_p=top_p)
    expected = warped(logits, temperature, min_p, top_k, top_p)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


@settings(max_examples=100, deadline=None)
@given(
    logits=st.lists(st.just(-math.inf) | st.floats(-(2.0**126), 2.0**126, width=32), max_size=20),
    temperature=st.floats(1e-45, 100.0),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    top_k=st.integers(0, 30),
    min_p=st.floats(0.0, 1.0),
)
def test_the_best_token_always_stays(logits, temperature, top_p, top_k, min_p):
    row = np.array([*logits, 1.0], dtype=np.float32)
    probabilities = weights(row, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    assert probabilities[int(row.argmax())] == probabilities.max() > 0.0
    assert probabilities[torch.tensor(row == -np.inf)].sum() == 0.0


def test_tied_tokens_stay_or_go_together():
    row = np.array([1.0, 3.0, 3.0, 3.0, 0.0], dtype=np.float32)
    for params in ({"top_k": 1}, {"top_k": 2}, {"top_p": 0.1}, {"top_p": 0.5}, {"min_p": 1.0}):
        assert weights(row, **params).nonzero().flatten().tolist() == [1, 2, 3]

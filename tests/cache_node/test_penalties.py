"""Bias and penalties against transformers and against OpenAI's formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from cache_node.penalties import adjusted
from cache_node.sampling import SampleSpec, SamplingParams

VOCAB = 40
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=60)


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 4.0, VOCAB).astype(np.float32)


def spec(prompt=(), output=(), banned=(), **params) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), 0, 0, banned, prompt, output)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 99),
    prompt=tokens,
    output=tokens,
    penalty=st.floats(0.1, 10.0).filter(lambda value: value != 1.0),
)
def test_repetition_is_that_of_transformers(seed, prompt, output, penalty):
    row = logits(seed)
    found = adjusted(row, spec(prompt, output, repetition_penalty=penalty))
    if not prompt + output:
        assert found.tolist() == row.tolist()
        return
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    expected = processor(torch.tensor([prompt + output]), torch.tensor(row)[None])[0]
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-6, atol=0)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 99),
    prompt=tokens,
    output=tokens,
    presence=st.floats(-2.0, 2.0),
    frequency=st.floats(-2.0, 2.0),
)
def test_presence_and_frequency_count_the_output_alone(seed, prompt, output, presence, frequency):
    row = logits(seed)
    params = {"presence_penalty": presence, "frequency_penalty": frequency}
    counts = np.array([output.count(token) for token in range(VOCAB)])
    expected = row - frequency * counts - presence * (counts > 0)
    found = adjusted(row, spec(prompt, output, **params))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_bias_comes_before_the_penalties():
    row = np.zeros(4, dtype=np.float32)
    asked = {"logit_bias": {1: 6.0, 2: -6.0}, "repetition_penalty": 2.0}
    assert adjusted(row, spec([1, 2], [], **asked)).tolist() == [0.0, 3.0, -12.0, 0.0]


def test_no_bias_brings_a_banned_token_back():
    row = np.zeros(4, dtype=np.float32)
    asked = {"logit_bias": {3: 100.0}, "repetition_penalty": 0.1, "frequency_penalty": -2.0}
    assert adjusted(row, spec([3], [3], (3,), **asked))[3] == -np.inf


@pytest.mark.parametrize("penalty", [1e-45, 1e-30, 10.0])
def test_extreme_penalties_give_numbers(penalty):
    row = np.array([80.0, -80.0, 0.0], dtype=np.float32)
    found = adjusted(row, spec([0, 1, 2], [], repetition_penalty=penalty))
    assert np.isfinite(found).all()


def test_a_row_that_asks_for_nothing_is_not_even_copied():
    row = logits(0)
    assert adjusted(row, spec([1], [2], temperature=0.5, top_k=3)) is row

"""Choosing a token: what is kept, how often it is chosen, and what a choice depends on."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_node.sampler import choose, uniform
from cache_node.sampling import SampleSpec, SamplingParams

LOGITS = [2.0, 0.0, 1.0, -1.0, 2.0, 0.5]  # 0 and 4 are tied


def spec(position=0, sample_index=0, banned=(), **params) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), position, sample_index, banned)


def row(logits) -> np.ndarray:
    return np.array(logits, dtype=np.float32)


def draw(logits, count=400, **params) -> list[int]:
    return [choose(row(logits), spec(position=i, **params)).token for i in range(count)]


def test_greedy_takes_the_first_of_the_best():
    assert choose(row(LOGITS), spec(temperature=0.0)).token == 0


def test_banned_tokens_are_never_chosen():
    assert choose(row(LOGITS), spec(temperature=0.0, banned=(0, 4))).token == 2
    specs = [spec(position=i, banned=(0, 4, 2)) for i in range(200)]
    assert {choose(row(LOGITS), each).token for each in specs} == {1, 3, 5}


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 3}, {0, 4, 2}),
        ({"top_k": 1}, {0, 4}),  # tied tokens stay together
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.5}, {0, 4}),
        ({"top_p": 0.8}, {0, 4, 2}),
        ({"top_p": 1e-9}, {0, 4}),
        ({"min_p": 0.3}, {0, 4, 2}),
        ({"min_p": 1.0}, {0, 4}),
        ({"top_k": 3, "top_p": 0.9}, {0, 4, 2}),
        ({"temperature": 1e-6}, {0, 4}),
        ({"temperature": 1e-310}, {0, 4}),
        ({"temperature": 100.0, "top_k": 4}, {0, 4, 2, 5}),
    ],
)
def test_what_is_kept(params, kept):
    assert set(draw(LOGITS, **params)) == kept


def test_top_p_applies_to_what_min_p_left():
    """Min-p leaves 0.5 and 0.25, two thirds and one third, of which one token reaches 0.6."""
    logits = [math.log(p) for p in (0.5, 0.25, 0.2, 0.05)]
    assert set(draw(logits, min_p=0.45, top_p=0.6)) == {0}
    assert set(draw(logits, top_p=0.6)) == {0, 1}


def test_top_p_over_a_flat_distribution_keeps_its_share():
    logits = [-i * 1e-4 for i in range(6000)]
    chosen = draw(logits, count=300, top_p=0.9)
    assert 4000 < max(chosen) < 5400


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-80.0, 80.0), min_size=1, max_size=30),
    top_p=st.floats(0.01, 0.99),
    top_k=st.integers(0, 30),
    min_p=st.floats(0.0, 0.9),
)
def test_nothing_outside_the_plain_definition_is_chosen(logits, top_p, top_k, min_p):
    chosen = draw(logits, count=60, top_p=top_p, top_k=top_k, min_p=min_p)
    assert set(chosen) <= plainly_kept(logits, top_p, top_k, min_p)


ROUNDING = 1e-5  # relative, of the weight of a token 80 below the best in float32


def plainly_kept(logits, top_p, top_k, min_p) -> set[int]:
    """Token by token from the most probable on; generous by a rounding error."""
    values = torch.tensor(logits).double()
    weights = (values - values.max()).exp() * (1.0 + ROUNDING)
    order = weights.argsort(descending=True, stable=True).tolist()
    order = [i for i in order if weights[i] >= min_p]
    if top_k:
        lowest = weights[order[:top_k][-1]] * (1.0 - ROUNDING)
        order = [i for i in order if weights[i] >= lowest]
    total, reached, last = float(weights[order].sum()), 0.0, math.inf
    kept = set()
    for i in order:
        if reached > top_p * total * (1.0 + ROUNDING) and weights[i] < last * (1.0 - ROUNDING):
            break
        kept.add(i)
        reached, last = reached + float(weights[i]), float(weights[i])
    return kept


def chi_square_limit(freedom: int) -> float:
    """What a chi-square variable exceeds once in 10,000 times (Wilson and Hilferty, 1931)."""
    spread = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - spread + 3.72 * math.sqrt(spread)) ** 3


@pytest.mark.parametrize(
    "params", [{}, {"temperature": 0.6}, {"top_k": 12}, {"top_p": 0.8}, {"min_p": 0.1}]
)
def test_frequencies_are_the_probabilities(params):
    """Of 600 tokens, more than one span, 40 likely ones that are spread over all of them."""
    logits = torch.full((600,), -12.0)
    logits[7::15] = torch.linspace(2.0, -1.0, 40)
    count = 6000
    drawn = np.bincount(draw(logits.numpy(), count, seed=11, **params), minlength=600)
    left = sorted(plainly_kept(logits.tolist(), *(params.get(f, d) for f, d in FILTERS)))
    weights = torch.full((600,), -math.inf)
    weights[left] = logits[left] / params.get("temperature", 1.0)
    expected = weights.softmax(dim=0).double().numpy() * count
    tested = expected >= 5.0
    assert drawn[expected == 0.0].sum() == 0
    statistic = float((((drawn - expected) ** 2)[tested] / expected[tested]).sum())
    assert statistic < chi_square_limit(int(tested.sum()) - 1)


FILTERS = (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0))


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=12),
    temperature=st.floats(0.0, 100.0, width=32),
    top_p=st.floats(0.0, 1.0, width=32, exclude_min=True),
    top_k=st.integers(0, 2**32 - 1),
    min_p=st.floats(0.0, 1.0, width=32),
    repetition_penalty=st.floats(0.0, 10.0, width=32, exclude_min=True),
    bias=st.floats(-100.0, 100.0, width=32),
)
def test_whatever_is_asked_for_a_token_of_the_vocabulary_comes(
    logits, temperature, top_p, top_k, min_p, repetition_penalty, bias
):
    params = SamplingParams(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=2.0,
        frequency_penalty=-2.0,
        logit_bias={0: bias},
    )
    last = len(logits) - 1
    banned = (last,) if last else ()
    each = SampleSpec(params, 3, 0, banned, prompt=[0], output=[0, last])
    assert 0 <= choose(row(logits), each).token < max(1, last)


def test_the_logits_stay_as_they_are():
    logits = row(LOGITS)
    asked = SamplingParams(logit_bias={1: 5.0}, frequency_penalty=1.0, top_k=2, logprobs=3)
    choose(logits, SampleSpec(asked, 0, 0, (0,), output=[2]))
    assert logits.tolist() == LOGITS


def test_samples_of_one_row_draw_numbers_of_their_own():
    logits = row([0.0] * 1000)
    tokens = [choose(logits, spec(sample_index=i, seed=3)).token for i in range(64)]
    assert len(set(tokens)) > 50
    assert tokens == [choose(logits, spec(sample_index=i, seed=3)).token for i in range(64)]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), count=st.sampled_from([1, 255, 256, 257, 3000]))
def test_a_choice_is_the_inverse_of_the_cumulative_distribution(seed, count):
    logits = np.random.default_rng(seed % 1000).normal(0.0, 2.0, count).astype(np.float32)
    reached = np.exp(logits.astype(np.float64)).cumsum()
    target = uniform(seed, 0, 9) * reached[-1]
    expected = int(reached.searchsorted(target, side="right"))
    nearest = abs(reached - target).min() / reached[-1]
    assert choose(logits, spec(9, seed=seed)).token == expected or nearest < 1e-6


def test_a_choice_depends_on_seed_sample_and_position():
    known = {
        uniform(seed, index, position)
        for seed in (0, 1, 2**64 - 1)
        for index in (0, 1)
        for position in (0, 1, 70000)
    }
    assert len(known) == 18
    assert all(0.0 <= number < 1.0 for number in known)


def test_the_random_numbers_never_change():
    """A client's seed means the same tokens after an upgrade and on every machine."""
    assert uniform(42, 0, 7) == 0.9794553400519082


def test_numbers_are_uniform():
    numbers = torch.tensor([uniform(5, 0, position) for position in range(4000)])
    counts = torch.histc(numbers, bins=10, min=0.0, max=1.0)
    assert counts.min() > 330
    assert counts.max() < 470

"""Choosing a token: what is kept, how often it is chosen, and what a choice depends on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cache_node.sampler import sample, uniform
from cache_node.sampling import SampleSpec, SamplingParams

LOGITS = [2.0, 0.0, 1.0, -1.0, 2.0, 0.5]  # 0 and 4 are tied


def spec(position=0, sample_index=0, banned=(), **params) -> SampleSpec:
    return SampleSpec(SamplingParams(**params), position, sample_index, banned)


def draw(logits, count=400, **params) -> list[int]:
    rows = torch.tensor([logits] * count)
    return sample(rows, [spec(position=i, **params) for i in range(count)])


def test_greedy_takes_the_first_of_the_best():
    assert sample(torch.tensor([LOGITS]), [spec(temperature=0.0)]) == [0]


def test_banned_tokens_are_never_chosen():
    assert sample(torch.tensor([LOGITS]), [spec(temperature=0.0, banned=(0, 4))]) == [2]
    rows = torch.tensor([LOGITS] * 200)
    specs = [spec(position=i, banned=(0, 4, 2)) for i in range(200)]
    assert set(sample(rows, specs)) == {1, 3, 5}


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


def plainly_kept(logits, top_p, top_k, min_p) -> set[int]:
    """Token by token from the most probable on; generous by a rounding error."""
    values = torch.tensor(logits).double()
    weights = (values - values.max()).exp()
    order = weights.argsort(descending=True, stable=True).tolist()
    order = [i for i in order if weights[i] >= min_p * 0.999999]
    if top_k:
        order = [i for i in order if weights[i] >= weights[order[:top_k][-1]]]
    total, reached, last = float(weights[order].sum()), 0.0, math.inf
    kept = set()
    for i in order:
        if reached > top_p * total * 1.000001 and weights[i] < last:
            break
        kept.add(i)
        reached, last = reached + float(weights[i]), float(weights[i])
    return kept


def test_frequencies_are_the_probabilities():
    probabilities = torch.tensor(LOGITS).div(0.8).softmax(dim=0)
    counts = torch.bincount(torch.tensor(draw(LOGITS, count=4000, temperature=0.8)), minlength=6)
    torch.testing.assert_close(counts / 4000, probabilities, rtol=0, atol=0.03)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(-(2**63), 2**64 - 1),
    temperature=st.floats(0.1, 3.0),
    top_p=st.floats(0.1, 1.0),
    others=st.integers(0, 4),
)
def test_the_rest_of_the_batch_changes_no_choice(seed, temperature, top_p, others):
    own = spec(position=9, seed=seed, temperature=temperature, top_p=top_p)
    generator = torch.Generator().manual_seed(seed % 1000)
    rows = torch.randn((others + 1, 300), generator=generator)
    specs = [*[spec(position=i, temperature=float(i % 2)) for i in range(others)], own]
    assert sample(rows[-1:].clone(), [own]) == sample(rows.clone(), specs)[-1:]


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

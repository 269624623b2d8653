"""Log-probabilities against torch, and what is reported with a choice."""

import numpy as np
import pytest
import torch

from cache_node.logprobs import token_logprobs
from cache_node.sampler import choose
from cache_node.sampling import SampleSpec, SamplingParams


def logits(count=5000, scale=4.0) -> np.ndarray:
    return np.random.default_rng(1).normal(0.0, scale, count).astype(np.float32)


@pytest.mark.parametrize("scale", [0.0, 1.0, 40.0, 1e4])
def test_they_are_those_of_torch(scale):
    row = logits(scale=scale)
    expected = torch.log_softmax(torch.tensor(row).double(), dim=0)
    for token in (0, 17, int(row.argmax()), int(row.argmin())):
        found = token_logprobs(row, token, 20)
        assert found.logprob == pytest.approx(float(expected[token]), abs=1e-5, rel=1e-6)
        best = expected.topk(20).values.tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(best, abs=1e-5, rel=1e-6)
        assert all(expected[i] == pytest.approx(p, abs=1e-5, rel=1e-6) for i, p in found.top)


def test_ranks_count_from_the_best():
    row = logits()
    order = np.argsort(-row, kind="stable")
    for place in (0, 1, 99, 4999):
        assert token_logprobs(row, int(order[place]), 0).rank == place + 1


def test_tied_tokens_rank_by_id_as_the_greedy_choice_does():
    row = np.array([0.0, 2.0, 1.0, 2.0, 2.0], dtype=np.float32)
    assert [token_logprobs(row, token, 0).rank for token in range(5)] == [5, 1, 4, 2, 3]
    assert [token for token, _ in token_logprobs(row, 0, 2).top] == [1, 3]
    chosen = choose(row, SampleSpec(SamplingParams(temperature=0.0, logprobs=1), 0))
    assert chosen.logprobs is not None
    assert chosen.logprobs.top == ((chosen.token, chosen.logprobs.logprob),)


def test_more_than_the_vocabulary_is_all_of_it():
    assert [token for token, _ in token_logprobs(logits(3), 0, 20).top] == list(
        np.argsort(-logits(3))
    )


def test_nothing_that_was_done_to_the_logits_shows():
    """As vLLM reports them: before bias, penalties, temperature and filters."""
    row = logits(50)
    second = int(np.argsort(-row)[1])
    params = SamplingParams(
        temperature=0.1,
        top_k=1,
        repetition_penalty=2.0,
        logit_bias={second: 100.0},
        logprobs=5,
    )
    choice = choose(row, SampleSpec(params, 0, 0, (3,), [5], [6]))
    assert choice.token == second
    assert choice.logprobs == token_logprobs(row, second, 5)
    assert choice.logprobs.rank == 2


@pytest.mark.parametrize(
    ("params", "top"),
    [({}, None), ({"logprobs": 0}, 0), ({"logprobs": 20}, 20), ({"n": 2, "best_of": 3}, 0)],
)
def test_they_come_when_they_are_needed(params, top):
    found = choose(logits(), SampleSpec(SamplingParams(**params), 0)).logprobs
    assert (found if found is None else len(found.top)) == top

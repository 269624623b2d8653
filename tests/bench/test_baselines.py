"""Every way to serve gives the same answers, at the cost that it is known for."""

import pytest

from bench.baselines.compare import BASELINES, OURS, Growth, make_jobs
from bench.baselines.job import Job, Machine
from bench.random_model import write_random_model
from cache_node.config import NodeConfig
from cache_node.load_executor import load_executor

PROMPTS = 256 + 16  # tokens


@pytest.fixture(scope="module")
def machine(tmp_path_factory, smollm2):
    directory = write_random_model(tmp_path_factory.mktemp("model"), smollm2)
    config = NodeConfig(dtype="float32", block_size=16, num_blocks=129, max_model_len=512)
    return Machine(config, load_executor(config, directory, lambda *_: None))


@pytest.fixture(scope="module")
def served(machine):
    return {name: baseline(machine, make_jobs(8)) for name, baseline in BASELINES.items()}


@pytest.mark.parametrize("name", BASELINES)
def test_all_give_the_same_answers(served, name):
    jobs = make_jobs(8)
    assert served[name].answers == served[OURS].answers
    assert [len(answer) for answer in served[name].answers] == [job.output for job in jobs]
    assert all(0 < first <= served[name].seconds for first in served[name].first)


def test_each_computes_what_it_must(served):
    jobs = make_jobs(8)
    assert served["no KV cache"].computed == sum(
        PROMPTS + place for job in jobs for place in range(job.output)
    )
    once = sum(PROMPTS + job.output - 1 for job in jobs)
    assert served["paged, no prefix cache"].computed == once
    # Two are repetitions of the first: a block at the most is computed again.
    assert once - 2 * PROMPTS < served["whole prompts cached"].computed < once - 2 * (PROMPTS - 32)
    # All but the first find the shared 256.
    assert once - 7 * PROMPTS < served[OURS].computed < once - 7 * 224
    # Padding: a batch goes on until its longest answer ends.
    padded = sum(max(job.output for job in jobs[start : start + 4]) * 4 - 4 for start in (0, 4))
    assert served["contiguous, static batches"].computed == 8 * PROMPTS + padded


def test_reserved_memory_holds_fewer_at_once(served):
    assert served["contiguous, static batches"].most == 4
    assert served["paged, no prefix cache"].most > 4


def test_an_answer_costs_more_with_each_token_where_nothing_is_cached(machine):
    def computed(name, length):
        return BASELINES[name](machine, [Job((5,) * 16, length)]).computed

    assert computed("no KV cache", 64) > 3 * computed("no KV cache", 32)
    cached = [computed("paged, no prefix cache", length) for length in (32, 64)]
    assert cached == [16 + 31, 16 + 63]


def test_growth_is_that_of_the_last_doubling():
    growth = Growth((1, 2, 4), (1.0, 2.0, 8.0), (1.0, 2.0, 4.0))
    assert growth.dearer == (2.0, 1.0)

"""What the memory benchmark counts."""

import random
from statistics import mean

import pytest

from bench.memory import GOAL, MAX_MODEL_LEN, held_tokens, measure_waste
from bench.mix import draw_mix
from tests.cache_node.mock_node import MockNode, tokens


def test_the_mix_has_the_mean_that_it_names_and_is_the_same_again():
    mix = draw_mix(1000, MAX_MODEL_LEN, seed=3)
    assert mean(shape.total for shape in mix) == pytest.approx(400, abs=1)
    assert max(shape.total for shape in mix) <= MAX_MODEL_LEN
    assert mix == draw_mix(1000, MAX_MODEL_LEN, seed=3)
    assert mix != draw_mix(1000, MAX_MODEL_LEN, seed=4)


def test_paged_memory_wastes_little_where_preallocation_wastes_most():
    paged, contiguous = measure_waste(400, block_sizes=[16])
    assert paged.wasted < GOAL
    assert contiguous.contiguous
    assert contiguous.wasted > 0.6
    assert contiguous.running < paged.running / 3


def test_a_shared_block_counts_once_and_tokens_to_come_do_not():
    node = MockNode(block_size=4, max_num_batched_tokens=32)
    prompt = tokens(10)
    node.generate(prompt, max_tokens=1)
    sequences = [node.submit(prompt + tokens(9, seed), max_tokens=4) for seed in (1, 2)]
    node.step()
    first, second = sequences
    assert set(first.block_table) & set(second.block_table)
    # The step has written 19 tokens of each. 8 of them are in two shared blocks, and count once.
    assert held_tokens(sequences, node.block_size) == 19 + 19 - 8
    node.submit(random.Random(0).choices(range(2, 1000), k=80))
    node.step()
    longest = node.scheduler.roster.running[-1]
    assert held_tokens([longest], node.block_size) == longest.num_computed < 80

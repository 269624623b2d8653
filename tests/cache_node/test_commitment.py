"""What a node says is committed of its pool: routers admit by it."""

import pytest

from cache_node.commitment import Adaptive, Greedy, Strict
from tests.cache_node.mock_node import MockNode, tokens


def test_strict_counts_every_sample_to_its_longest_end():
    node = MockNode(block_size=4, commitment=Strict())
    node.submit(tokens(10), max_tokens=10, n=2)
    node.step()
    # Two whole blocks are shared; the third and all that follow are each sample's own. While the
    # third is still shared, either may be the one that copies it.
    assert node.scheduler.committed_blocks == 2 + 2 * 3 + 1
    node.step()
    assert node.scheduler.committed_blocks == 2 + 2 * 3


def test_strict_never_holds_more_than_it_committed_and_ends_at_nothing():
    node = MockNode(num_blocks=24, block_size=4, commitment=Strict())
    for seed in range(6):
        node.submit(tokens(9, seed), max_tokens=12)
    while node.scheduler.has_work:
        before = node.scheduler.committed_blocks
        node.step()
        assert node.pool.num_held <= before
        assert node.scheduler.committed_blocks <= before
    assert node.scheduler.committed_blocks == 0
    assert node.counters.preemptions == 0


@pytest.mark.parametrize(("commitment", "low", "high"), [(Strict(), 6, 7), (Greedy(), 3, 4)])
def test_those_that_wait_count_before_they_hold_a_block(commitment, low, high):
    node = MockNode(block_size=4, commitment=commitment)
    node.submit(tokens(12), max_tokens=12)
    assert node.pool.num_held == 0
    assert low <= node.scheduler.committed_blocks <= high


def test_adaptive_counts_the_share_of_the_growth_that_it_has_learned():
    node = MockNode(block_size=4, commitment=Adaptive())
    node.submit(tokens(9), max_tokens=40)
    node.step()
    held, growth = node.pool.num_held, 13 - node.pool.num_held
    assert 0 < node.scheduler.growth_share < 1
    expected = held + node.scheduler.growth_share * growth
    assert expected <= node.scheduler.committed_blocks < expected + 1

"""Blocks that several samples and requests share: forks, partial matches, leaders, pins."""

import pytest

from cache_node.pins import MAX_SHARE
from cache_node.sequence import State
from tests.cache_node.mock_node import MockNode, reference, tokens
from tests.cache_node.pool_content import chain


def samples_of(node: MockNode, request_id: str) -> list:
    return [seq for (name, _), seq in sorted(node.finished.items()) if name == request_id]


@pytest.mark.parametrize("length", [1, 7, 8, 9])
@pytest.mark.parametrize("cache", [True, False])
def test_samples_share_the_prompt_and_copy_the_last_block_when_they_write(length, cache):
    node = MockNode(num_blocks=64)
    leader = node.submit(tokens(length), 6, n=4, temperature=1.0, cache=cache)
    node.step()
    held = node.pool.num_held
    assert held == node.pool.blocks_for(length)
    node.run()
    samples = samples_of(node, leader.request.id)
    assert [seq.output for seq in samples] == [
        reference(tokens(length), 6, sample) for sample in range(4)
    ]
    copies = [copy for plan in node.executor.plans for copy in plan.copies]
    assert len(copies) == (3 if length % 4 else 0)


def test_the_prompt_of_many_samples_is_computed_once():
    node = MockNode()
    node.generate(tokens(20), 3, n=5, temperature=1.0)
    computed = sum(plan.num_tokens for plan in node.executor.plans)
    assert computed == 20 + 5 * 2


def test_many_samples_wait_for_a_seat_each():
    node = MockNode(max_num_seqs=4)
    first = node.submit(tokens(4), 4, n=3, temperature=1.0)
    node.step()
    second = node.submit(tokens(4, 1), 4, n=3, temperature=1.0)
    node.step()
    assert second.state is State.WAITING
    node.run()
    assert len(samples_of(node, first.request.id)) == len(samples_of(node, second.request.id)) == 3
    with pytest.raises(ValueError, match="5 samples, but at most 4"):
        node.submit(tokens(4), 4, n=5)


def test_a_match_inside_a_block_is_copied():
    node = MockNode(block_size=8)
    node.generate(tokens(24), 1)
    prompt = [*tokens(24)[:21], 7, 7, 7, 7, 7]
    again = node.generate(prompt, 4)
    assert again.request.cached_tokens == 21
    assert again.output == reference(prompt, 4)


def test_a_match_is_taken_from_the_sibling_that_shares_most():
    node = MockNode(block_size=8)
    base = tokens(8)
    node.generate([*base, 1001, 1002, 1003, 0, 0, 0, 0, 0], 1)
    node.generate([*base, 1001, 1002, 1003, 1004, 1005, 0, 0, 0], 1)
    node.generate([*base, 1001, 0, 0, 0, 0, 0, 0, 0], 1)
    prompt = [*base, 1001, 1002, 1003, 1004, 1005, 1006, 1007]
    assert node.generate(prompt, 2).request.cached_tokens == 8 + 5


def test_a_follower_waits_for_the_chunks_of_its_leader_and_computes_only_its_own():
    node = MockNode(num_blocks=128, max_num_batched_tokens=16)
    leader = node.submit([*tokens(60), 1], 2)
    node.step()
    follower = node.submit([*tokens(60), 2], 2)
    node.run()
    assert follower.request.cached_tokens == 60
    assert follower.output == reference([*tokens(60), 2], 2)
    assert leader.request.first_token < follower.request.first_scheduled
    assert node.counters.prefix_waits == 1


def test_a_follower_whose_leader_is_aborted_goes_on_alone():
    node = MockNode(num_blocks=128, max_num_batched_tokens=16)
    leader = node.submit([*tokens(60), 1], 2)
    node.step()
    follower = node.submit([*tokens(60), 2], 2)
    node.step()
    assert follower.state is State.WAITING
    node.abort(leader)
    node.step()
    assert follower.state is State.RUNNING
    node.run()
    assert follower.output == reference([*tokens(60), 2], 2)


def test_a_follower_waits_only_so_long():
    node = MockNode(num_blocks=128, limits={"prefix_wait": 0.0})
    pair = [node.submit([*tokens(20), i], 2) for i in range(2)]
    node.step()
    assert [seq.state for seq in pair] == [State.RUNNING] * 2
    node.run()
    assert pair[1].output == reference([*tokens(20), 1], 2)


def test_others_pass_a_follower_that_waits():
    node = MockNode(num_blocks=128, max_num_batched_tokens=24)
    node.submit([*tokens(100), 1], 2)
    node.step()
    follower = node.submit([*tokens(100), 2], 2)
    other = node.submit(tokens(10, 5), 2)
    node.run()
    assert other.request.first_scheduled <= follower.request.first_scheduled


def test_a_pinned_prefix_survives_pressure_until_it_expires():
    node = MockNode(num_blocks=16, block_size=4)
    node.generate(tokens(16), 1)
    blocks = node.pool.lookup(chain(tokens(16)))
    assert node.memory.pins.pin("system", blocks, 0, node.now + 1.0)
    for i in range(5):
        node.generate(tokens(40, seed=i + 1), 4)
    assert node.generate([*tokens(16), 5], 1).request.cached_tokens == 16
    node.now += 2.0
    for i in range(5):
        node.generate(tokens(56, seed=i + 1), 4)
    assert node.generate([*tokens(16), 5], 1).request.cached_tokens < 16


def test_pins_hold_a_bounded_share_and_the_important_ones_stay():
    node = MockNode(num_blocks=16, block_size=4)
    pins, room = node.memory.pins, int(16 * MAX_SHARE)
    hits = {}
    for seed in range(3):
        node.generate(tokens(4 * room // 2, seed=seed), 1)
        hits[seed] = node.pool.lookup(chain(tokens(4 * room // 2, seed=seed)))
        assert pins.pin(f"p{seed}", hits[seed], seed, None)
        assert node.scheduler.check_integrity() == []
    assert not pins.unpin("p0")
    node.generate(tokens(4 * room // 2, seed=9), 1)
    assert not pins.pin("p9", node.pool.lookup(chain(tokens(4 * room // 2, seed=9))), 0, None)
    assert pins.unpin("p1")
    assert pins.unpin("p2")


def test_a_request_that_fits_nowhere_else_takes_the_place_of_pins():
    node = MockNode(num_blocks=16, block_size=4)
    node.generate(tokens(32), 1)
    assert node.memory.pins.pin("p", node.pool.lookup(chain(tokens(32))), 5, None)
    assert node.generate(tokens(50, seed=2), 10).output == reference(tokens(50, seed=2), 10)
    assert len(node.memory.pins) == 0


def test_a_decode_that_fits_nowhere_else_takes_the_place_of_pins():
    node = MockNode(num_blocks=16, block_size=4)
    node.generate(tokens(32), 1)
    assert node.memory.pins.pin("p", node.pool.lookup(chain(tokens(32))), 5, None)
    assert node.generate(tokens(20, seed=2), 40).output == reference(tokens(20, seed=2), 40)
    assert node.counters.preemptions == 0

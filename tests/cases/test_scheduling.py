"""Admission, blocks, wrong output: the cases that the scheduler and the block pool answer for."""

import pytest

from cache_node.commitment import Adaptive
from cache_node.sequence import FinishReason, State
from tests.cache_node.mock_node import MockNode, reference, tokens


def test_a1_what_can_never_fit_is_refused_at_submit_and_the_next_request_runs():
    node = MockNode(num_blocks=4, block_size=4)
    with pytest.raises(ValueError, match="need 5 blocks, the pool has 4"):
        node.submit(tokens(12), 5)
    assert node.generate(tokens(6), 4).output == reference(tokens(6), 4)


class NeverAgain(Adaptive):
    """Promises so much to whoever runs that nobody else is ever admitted, and nobody runs."""

    def spare(self, *_):
        return None


def test_a4_every_step_makes_progress_and_one_that_does_not_is_counted():
    node = MockNode(num_blocks=40)
    for i in range(6):
        node.submit(tokens(20, seed=i), 12)
    node.run()
    assert node.counters.steps_without_progress == 0
    stuck = MockNode(commitment=NeverAgain())
    stuck.submit(tokens(4), 2)
    assert [stuck.step() for _ in range(3)] == [0, 0, 0]
    assert stuck.counters.steps_without_progress == 3


def test_a6_a_preempted_request_is_readmitted_only_with_room_for_all_its_tokens():
    node = MockNode(num_blocks=12, block_size=4, max_num_batched_tokens=16)
    for i in range(3):
        node.submit(tokens(12, seed=i), 20)
    node.run()
    assert 0 < node.counters.preemptions <= 6


def test_a7_the_whole_input_is_counted_at_admission():
    node = MockNode(num_blocks=20, block_size=4, max_num_batched_tokens=16)
    for i in range(5):
        node.submit(tokens(28, seed=i), 1)
    node.step()
    assert len(node.scheduler.roster.running) <= 2
    node.run()
    assert node.counters.preemptions == 0


def test_a10_a_single_request_may_take_the_last_block():
    node = MockNode(num_blocks=4, block_size=4)
    assert node.generate(tokens(6), 10).output == reference(tokens(6), 10)


def test_a16_a_preempted_request_resumes_before_newcomers_of_its_priority():
    node = MockNode(num_blocks=10, block_size=4)
    old = [node.submit(tokens(8, seed=i), 20) for i in range(2)]
    while not node.counters.preemptions:
        node.step()
    new = node.submit(tokens(8, seed=9), 2)
    while new.state is State.WAITING:
        assert node.step()
    assert all(seq.state is not State.PREEMPTED for seq in old)


def test_a19_a_long_prompt_keeps_its_progress_without_the_cache():
    node = MockNode(num_blocks=20, max_num_batched_tokens=8)
    sequence = node.submit(tokens(40), 2, cache=False)
    node.run()
    computed = sum(len(row.token_ids) for plan in node.executor.plans for row in plan.rows)
    assert computed == 40 + 1
    assert sequence.output == reference(tokens(40), 2)


def test_a20_many_long_prefills_in_a_small_pool_all_finish():
    node = MockNode(num_blocks=16, block_size=4, max_num_batched_tokens=16)
    sequences = [node.submit(tokens(40, seed=i), 12) for i in range(6)]
    node.run()
    assert all(seq.num_output == 12 for seq in sequences)


def test_b5_an_abort_in_every_state_and_twice():
    node = MockNode(num_blocks=10, block_size=4, max_num_batched_tokens=8)
    waiting = node.submit(tokens(8), 20)
    node.abort(waiting)
    node.abort(waiting)
    prefilling = node.submit(tokens(20), 4)
    node.step()
    node.abort(prefilling)
    both = [node.submit(tokens(8, seed=i), 20) for i in range(2)]
    while not node.counters.preemptions:
        node.step()
    for sequence in both:
        node.abort(sequence)
        node.abort(sequence)
    assert not node.scheduler.has_work
    assert node.pool.num_free == node.pool.num_blocks


def test_b13_an_abort_and_a_finish_in_one_step_free_once():
    node = MockNode()
    sequence = node.submit(tokens(5), 1)
    node.step()
    assert sequence.finish_reason is FinishReason.LENGTH
    node.abort(sequence)
    assert sequence.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64, 128])
def test_b14_every_block_size_keeps_the_invariants_and_the_answers(block_size):
    node = MockNode(num_blocks=max(8, 256 // block_size), block_size=block_size)
    sequences = [node.submit(tokens(60, seed=i % 2), 30) for i in range(5)]
    node.run()
    for i, sequence in enumerate(sequences):
        assert sequence.output == reference(tokens(60, seed=i % 2), 30)


def test_c1_a_prompt_aborted_during_prefill_leaves_only_computed_blocks():
    node = MockNode(max_num_batched_tokens=8)
    sequence = node.submit(tokens(40), 4)
    node.step()
    node.abort(sequence)
    again = node.generate(tokens(40), 4)
    assert again.request.cached_tokens == 8
    assert again.output == reference(tokens(40), 4)


def test_c2_two_requests_with_one_new_prefix_in_one_step():
    node = MockNode()
    pair = [node.submit([*tokens(16), i], 6) for i in range(2)]
    node.run()
    for i, sequence in enumerate(pair):
        assert sequence.output == reference([*tokens(16), i], 6)


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_c3_a_fully_cached_prompt_of_whole_blocks_still_computes_a_token(blocks):
    node = MockNode()
    prompt = tokens(4 * blocks)
    first = node.generate(prompt, 8)
    again = node.generate(prompt, 8)
    assert again.output == first.output
    assert 4 * (blocks - 1) <= again.request.cached_tokens < len(prompt)


def test_c5_hits_are_looked_up_again_at_every_try():
    node = MockNode(num_blocks=12, block_size=4)
    node.generate(tokens(16), 1)
    blocker = node.submit(tokens(20, seed=5), 24)
    node.step()
    waiting = node.submit(tokens(16) + tokens(16, seed=6), 4)
    node.run()
    assert blocker.output == reference(tokens(20, seed=5), 24)
    assert waiting.output == reference(tokens(16) + tokens(16, seed=6), 4)


@pytest.mark.parametrize("chunk", [16, 64])
def test_e1_log_probabilities_of_a_cached_prompt_are_complete(chunk):
    node = MockNode(max_num_batched_tokens=chunk)
    prompt = tokens(30)
    for _ in range(2):
        sequence = node.generate(prompt, 2, prompt_logprobs=0)
        entries = [entry.logprob for entry in sequence.request.prompt_logprobs]
        assert entries == [-float(token) for token in prompt[1:]]
        assert sequence.output == reference(prompt, 2)
    assert node.generate(prompt, 2).request.cached_tokens == 28


def test_e1_they_are_complete_after_a_preemption_in_the_middle_of_the_prompt():
    node = MockNode(num_blocks=14, max_num_batched_tokens=16)
    sequence = node.submit(tokens(40), 2, prompt_logprobs=0)
    node.step()
    node.submit(tokens(20, 1), 2, priority=1)
    node.run()
    assert sequence.request.preemptions == 1
    entries = [entry.logprob for entry in sequence.request.prompt_logprobs]
    assert entries == [-float(token) for token in tokens(40)[1:]]


def test_e4_a_hit_that_leaves_less_than_a_chunk_makes_no_empty_chunk():
    node = MockNode(max_num_batched_tokens=8)
    node.generate(tokens(16), 1)
    node.generate([*tokens(16), 3], 1)
    assert all(row.token_ids for plan in node.executor.plans for row in plan.rows)


def test_f4_a_look_up_retried_many_times_is_counted_once():
    node = MockNode(num_blocks=8, block_size=4)
    node.submit(tokens(20), 8)
    node.step()
    node.submit(tokens(16, seed=1), 4)
    node.run()
    assert node.counters.queried_tokens == 36

"""Continuous batching: what users see of it, whatever the pool's size and the chunks."""

from cache_node.sequence import FinishReason
from tests.cache_node.mock_node import MockNode, next_token, reference, tokens


def test_a_request_alone_gets_the_models_answer():
    node = MockNode()
    sequence = node.generate(tokens(10), 12)
    assert sequence.output == reference(tokens(10), 12)
    assert sequence.finish_reason is FinishReason.LENGTH


def test_many_at_once_get_what_each_would_get_alone():
    node = MockNode(num_blocks=200, max_num_seqs=5)
    sequences = [node.submit(tokens(3 + 7 * i, seed=i), 4 + i) for i in range(12)]
    node.run()
    for i, sequence in enumerate(sequences):
        assert sequence.output == reference(tokens(3 + 7 * i, seed=i), 4 + i)


def test_a_step_never_exceeds_its_budget_or_the_number_of_sequences():
    node = MockNode(num_blocks=500, max_num_seqs=3, max_num_batched_tokens=10)
    for i in range(8):
        node.submit(tokens(25, seed=i), 5)
    node.run()
    assert max(plan.num_tokens for plan in node.executor.plans) <= 10
    assert max(len(plan.rows) for plan in node.executor.plans) <= 3


def test_decodes_go_on_while_a_long_prompt_is_prefilled_in_chunks():
    node = MockNode(num_blocks=100, max_num_batched_tokens=8)
    short = node.submit(tokens(4), 30)
    node.step()
    node.submit(tokens(60, seed=1), 2)
    before = short.num_output
    for _ in range(5):
        node.step()
    assert short.num_output == before + 5


def test_end_of_sequence_and_stop_tokens_end_a_request():
    first, second = reference(tokens(6), 2)
    node = MockNode()
    sequence = node.submit(tokens(6), 8)
    sequence.request.eos_token_ids = frozenset({second})
    node.run()
    assert sequence.output == [first, second]
    assert sequence.finish_reason is FinishReason.STOP


def test_a_prefix_is_computed_once_and_shared():
    node = MockNode()
    first = node.generate([*tokens(16), 7, 8], 4)
    again = node.generate([*tokens(16), 9], 4)
    assert (first.request.cached_tokens, again.request.cached_tokens) == (0, 16)
    assert again.output == reference([*tokens(16), 9], 4)
    assert (node.counters.queried_tokens, node.counters.hit_tokens) == (35, 16)


def test_an_answer_is_cached_too_for_the_next_turn():
    node = MockNode()
    first = node.generate(tokens(8), 9)
    turn = [*first.tokens, *tokens(5, seed=3)]
    assert node.generate(turn, 2).request.cached_tokens == 16


def test_a_request_with_the_cache_off_neither_reads_nor_leaves_anything():
    node = MockNode()
    node.generate(tokens(16), 2, cache=False)
    assert node.generate(tokens(16), 2).request.cached_tokens == 0
    assert node.generate(tokens(16), 2, cache=False).request.cached_tokens == 0


def test_a_tight_pool_preempts_and_changes_no_token():
    node = MockNode(num_blocks=14, block_size=4)
    sequences = [node.submit(tokens(9, seed=i), 24) for i in range(4)]
    node.run()
    assert node.counters.preemptions > 0
    for i, sequence in enumerate(sequences):
        assert sequence.output == reference(tokens(9, seed=i), 24)


def test_the_last_to_arrive_among_the_least_important_gives_way():
    node = MockNode(num_blocks=12, block_size=4)
    low = node.submit(tokens(8, seed=1), 30, priority=0)
    high = node.submit(tokens(8, seed=2), 30, priority=5)
    node.run()
    assert high.request.preemptions == 0
    assert low.request.preemptions > 0


def test_a_more_important_request_takes_the_place_of_a_less_important_one():
    node = MockNode(max_num_seqs=1)
    running = node.submit(tokens(4), 3)
    node.step()
    late, urgent = node.submit(tokens(4, 1), 3), node.submit(tokens(4, 2), 3, priority=1)
    node.run()
    ends = [seq.request.finished for seq in (urgent, running, late)]
    assert ends == sorted(ends)
    assert node.counters.preempted_for_priority == running.request.preemptions == 1


def test_a_more_important_prompt_goes_before_the_rest_of_a_long_one():
    node = MockNode(num_blocks=128, max_num_batched_tokens=16)
    long = node.submit(tokens(120), 2)
    node.step()
    urgent = node.submit(tokens(12, 1), 2, priority=1)
    equal = node.submit(tokens(12, 2), 2)
    node.run()
    assert urgent.request.first_token < long.request.first_token < equal.request.first_token


def test_an_equal_one_waits():
    node = MockNode(max_num_seqs=1)
    running = node.submit(tokens(4), 3)
    node.step()
    late = node.submit(tokens(4, 1), 3)
    node.run()
    assert running.request.finished < late.request.first_scheduled
    assert node.counters.preemptions == 0


def test_the_mock_model_notices_a_wrong_block():
    assert next_token([1, 2, 3]) != next_token([1, 2, None])

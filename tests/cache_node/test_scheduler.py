"""Continuous batching: what users see of it, whatever the pool's size and the chunks."""

import random

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
    sequence.eos_token_ids = frozenset({second})
    node.run()
    assert sequence.output == [first, second]
    assert sequence.finish_reason is FinishReason.STOP


def test_a_prefix_is_computed_once_and_shared():
    node = MockNode()
    first = node.generate([*tokens(16), 7, 8], 4)
    again = node.generate([*tokens(16), 9], 4)
    assert (first.cached_tokens, again.cached_tokens) == (0, 16)
    assert again.output == reference([*tokens(16), 9], 4)
    assert (node.scheduler.queried_tokens, node.scheduler.hit_tokens) == (35, 16)


def test_an_answer_is_cached_too_for_the_next_turn():
    node = MockNode()
    first = node.generate(tokens(8), 9)
    turn = [*first.tokens, *tokens(5, seed=3)]
    assert node.generate(turn, 2).cached_tokens == 16


def test_a_request_with_the_cache_off_neither_reads_nor_leaves_anything():
    node = MockNode()
    node.generate(tokens(16), 2, cache=False)
    assert node.generate(tokens(16), 2).cached_tokens == 0
    assert node.generate(tokens(16), 2, cache=False).cached_tokens == 0


def test_a_tight_pool_preempts_and_changes_no_token():
    node = MockNode(num_blocks=14, block_size=4)
    sequences = [node.submit(tokens(9, seed=i), 24) for i in range(4)]
    node.run()
    assert node.scheduler.preemptions > 0
    for i, sequence in enumerate(sequences):
        assert sequence.output == reference(tokens(9, seed=i), 24)


def test_the_last_to_arrive_among_the_least_important_gives_way():
    node = MockNode(num_blocks=12, block_size=4)
    low = node.submit(tokens(8, seed=1), 30, priority=0)
    high = node.submit(tokens(8, seed=2), 30, priority=5)
    node.run()
    assert high.preemptions == 0
    assert low.preemptions > 0


def test_higher_priority_is_admitted_first():
    node = MockNode(max_num_seqs=1)
    running = node.submit(tokens(4), 3)
    node.step()
    late, urgent = node.submit(tokens(4, 1), 3), node.submit(tokens(4, 2), 3, priority=1)
    node.run()
    assert running.finished < urgent.finished < late.finished


def test_a_random_blast_ends_every_request_once_and_leaves_the_pool_free():
    rng = random.Random(7)
    node = MockNode(num_blocks=40, block_size=4, max_num_seqs=6, max_num_batched_tokens=24)
    live, aborted, wanted = [], set(), {}
    for _ in range(3000):
        if rng.random() < 0.3 and len(live) < 30:
            prompt = tokens(rng.randint(1, 60), seed=rng.randint(0, 5))
            sequence = node.submit(prompt, rng.randint(1, 40), priority=rng.randint(-1, 1))
            wanted[sequence.request_id] = (prompt, sequence)
            live.append(sequence)
        if live and rng.random() < 0.05:
            gone = live.pop(rng.randrange(len(live)))
            if gone.request_id not in node.finished:
                aborted.add(gone.request_id)
            node.abort(gone)
        live = [seq for seq in live if seq.request_id not in node.finished]
        if node.scheduler.has_work:
            assert node.step()
    node.run()
    assert set(node.finished) | aborted == set(wanted)
    assert not set(node.finished) & aborted
    assert node.scheduler.preemptions > 0
    assert node.scheduler.hit_tokens > 0
    for name in node.finished:
        prompt, sequence = wanted[name]
        assert sequence.output == reference(prompt, sequence.params.max_tokens)


def test_the_mock_model_notices_a_wrong_block():
    assert next_token([1, 2, 3]) != next_token([1, 2, None])

"""Swap and loads: cases A13, A14, B9, C7, C9, C11, C18, H3."""

from cache_node.preemption import PreemptionMode
from cache_node.sequence import State
from tests.cache_node.mock_node import MockNode, reference, tokens


def cold_tier(**options) -> MockNode:
    """A node whose prefix tokens(20) is in the CPU pool and no more in the KV pool."""
    node = MockNode(num_blocks=14, num_cpu_blocks=60, preemption=PreemptionMode.SWAP, **options)
    node.generate([*tokens(20), 1], 1)
    for seed in range(1, 4):
        node.generate(tokens(40, seed=seed), 4)
    return node


def test_a13_without_swap_space_preemption_by_swap_recomputes():
    node = MockNode(num_blocks=14, preemption=PreemptionMode.SWAP)
    sequences = [node.submit(tokens(9, seed=i), 24) for i in range(4)]
    node.run()
    assert node.counters.preempted_by_recompute > 0
    for i, sequence in enumerate(sequences):
        assert sequence.output == reference(tokens(9, seed=i), 24)


def test_a14_a_full_cpu_pool_falls_back_to_recompute():
    node = MockNode(
        num_blocks=100, num_cpu_blocks=3, max_num_seqs=51, preemption=PreemptionMode.SWAP
    )
    leader = node.submit(tokens(9), 4, n=40, temperature=1.0)
    node.submit(tokens(8, seed=1), 100, priority=1)
    node.run()
    for sample in range(40):
        assert node.finished[leader.request.id, sample].output == reference(tokens(9), 4, sample)


def test_b9_a_look_up_that_leads_to_nothing_leaves_no_reference():
    node = cold_tier()
    node.submit(tokens(24, seed=5), 28)
    node.step()
    blocked = node.submit([*tokens(20), *tokens(20, seed=6)], 8)
    for _ in range(5):
        node.step()
    assert blocked.state is State.WAITING
    node.abort(blocked)
    node.run()
    node.assert_all_free()


def test_c7_a_block_is_copied_down_before_the_step_overwrites_it():
    node = MockNode(num_blocks=14, num_cpu_blocks=60)
    node.generate([*tokens(20), 1], 1)
    node.generate(tokens(50, seed=1), 2)
    plan = next(plan for plan in node.executor.plans if plan.offloads)
    written = {block for row in plan.rows for block in row.block_table}
    assert {copy.source for copy in plan.offloads} & written
    assert node.generate([*tokens(20), 2], 3).output == reference([*tokens(20), 2], 3)


def test_c9_a_cpu_block_that_is_being_loaded_is_not_evicted():
    node = cold_tier()
    node.executor.hold_loads = True
    loading = node.submit([*tokens(20), 2], 3)
    node.step()
    assert loading.state is State.LOADING
    for seed in range(20, 40):
        node.submit(tokens(16, seed=seed), 2)
    for _ in range(60):
        node.step()
    node.executor.finish_loads()
    node.run()
    assert loading.output == reference([*tokens(20), 2], 3)


def test_c11_a_load_that_fails_half_way_is_computed_and_never_counts_as_ready():
    node = cold_tier()
    node.executor.hold_loads = True
    sequence = node.submit([*tokens(20), 2], 3)
    node.step()
    node.executor.finish_loads(whole=False)
    node.executor.hold_loads = False
    node.run()
    assert node.counters.failed_loads == 1
    assert sequence.output == reference([*tokens(20), 2], 3)


def test_c18_each_sample_of_a_partial_last_block_equals_the_same_sample_alone():
    node = MockNode(block_size=8)
    together = node.submit(tokens(13), 9, n=3, temperature=1.0)
    node.run()
    for sample in range(3):
        found = node.finished[together.request.id, sample]
        assert found.output == reference(tokens(13), 9, sample)


def test_h3_a_tier_that_hangs_costs_a_deadline_and_then_a_recomputation():
    node = cold_tier()
    node.executor.hold_loads = True
    sequence = node.submit([*tokens(20), 2], 3)
    node.step()
    assert sequence.state is State.LOADING
    node.now += 60.0
    while sequence.state is not State.FINISHED:
        node.now += 6.0
        node.step()
    assert sequence.output == reference([*tokens(20), 2], 3)
    assert 1 <= node.counters.failed_loads <= 2
    held = node.pool.num_held
    assert held > 0, "the hanging load may still write to its blocks"
    node.executor.finish_loads()
    node.assert_all_free()

"""The CPU pool: second tier of the prefix cache, and swap."""

import pytest

from cache_node.preemption import PreemptionCosts, PreemptionMode
from cache_node.sequence import State
from tests.cache_node.mock_node import MockNode, reference, tokens


def swapping(**options) -> MockNode:
    settings = {"num_blocks": 14, "num_cpu_blocks": 40, "preemption": PreemptionMode.SWAP}
    return MockNode(**settings | options)


def test_an_evicted_prefix_comes_back_from_the_cpu_pool():
    node = swapping()
    node.generate([*tokens(20), 1], 1)
    for seed in range(1, 4):
        node.generate(tokens(40, seed=seed), 4)
    again = node.generate([*tokens(20), 2], 3)
    assert (again.request.cached_tokens, again.request.loaded_tokens) == (0, 20)
    assert again.output == reference([*tokens(20), 2], 3)


def test_a_swapped_request_goes_on_where_it_was():
    node = swapping()
    sequences = [node.submit(tokens(9, seed=i), 24, cache=i % 2 == 0) for i in range(4)]
    node.run()
    assert node.counters.preempted_by_swap > 0
    assert node.counters.preempted_by_recompute == 0
    computed = sum(plan.num_tokens for plan in node.executor.plans)
    assert computed == 4 * (9 + 24 - 1)
    for i, sequence in enumerate(sequences):
        assert sequence.output == reference(tokens(9, seed=i), 24)


def test_samples_that_are_swapped_share_the_blocks_of_their_prompt():
    node = swapping(num_blocks=20, num_cpu_blocks=60)
    node.submit(tokens(24), 12, n=4, temperature=1.0, cache=False)
    node.submit(tokens(8, seed=1), 40, cache=False)
    node.run()
    assert node.counters.preempted_by_swap >= 1
    for sample in range(4):
        assert node.finished["r0", sample].output == reference(tokens(24), 12, sample)


def test_preemption_goes_by_cost():
    costs = PreemptionCosts(PreemptionMode.AUTO, 1000, copy_bytes_per_second=1e6)
    assert costs.prefers_swap(tokens=16, blocks=1)
    costs.prefill_tokens_per_second = 1e3
    assert costs.prefers_swap(tokens=16, blocks=1)
    costs.prefill_tokens_per_second = 1e4
    assert not costs.prefers_swap(tokens=16, blocks=1)


def test_a_load_runs_beside_the_steps_of_others():
    node = swapping()
    node.generate([*tokens(20), 1], 1)
    for seed in range(1, 4):
        node.generate(tokens(40, seed=seed), 4)
    node.executor.hold_loads = True
    loading = node.submit([*tokens(20), 2], 3)
    other = node.submit(tokens(4, seed=9), 5)
    for _ in range(3):
        node.step()
    assert loading.state is State.LOADING
    assert other.num_output == 3
    node.executor.finish_loads()
    node.run()
    assert loading.output == reference([*tokens(20), 2], 3)


@pytest.mark.parametrize("state", ["loading", "swapped"])
def test_an_abort_gives_everything_back(state):
    node = swapping()
    if state == "loading":
        node.generate([*tokens(20), 1], 1)
        node.generate(tokens(48, seed=1), 4)
        node.executor.hold_loads = True
        sequence = node.submit([*tokens(20), 2], 3)
        node.step()
        assert sequence.state is State.LOADING
    else:
        pair = [node.submit(tokens(9, seed=i), 24) for i in range(2)]
        while not node.counters.preempted_by_swap:
            node.step()
        sequence = next(seq for seq in pair if seq.state is State.PREEMPTED)
        assert sequence.swapped
    node.abort(sequence)
    node.executor.finish_loads()
    node.run()
    node.assert_all_free()


def test_a_failed_step_forgets_what_it_swapped_out():
    node = swapping()
    pair = [node.submit(tokens(9, seed=i), 24) for i in range(2)]
    while True:
        node.now += 0.01
        step = node.scheduler.schedule(node.now)
        if step.swapped:
            break
        for chosen in node.scheduler.commit(step, node.executor.run(step.plan), node.now):
            assert chosen.finish_reason is None
    node.scheduler.rollback(step)
    for sequence in step.sequences:
        node.abort(sequence)
    assert node.scheduler.check_integrity() == []
    node.run()
    (left,) = [seq for seq in pair if seq not in step.sequences]
    assert left.output == reference(left.request.prompt, 24)

"""The CPU executor keeps the contract of `Executor`, and tells early what it cannot do."""

import pytest
import torch

from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import BlockCopy, Row, RowResult, StepPlan
from tests.model_driver import GREEDY, Driver, make_executor
from tests.tiny_model import save_tiny

PROMPT = [(7 * i * i + 3) % 97 for i in range(20)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_without_a_sample_get_no_token(tiny, dtype):
    executor = make_executor(tiny, dtype)
    assert executor.run(StepPlan([Row(PROMPT, 0, [1, 2])])) == [RowResult()]
    rows = [Row(PROMPT, 0, [1, 2]), Row(PROMPT, 0, [3, 4], [SampleSpec(GREEDY, 20)])]
    nothing, result = executor.run(StepPlan(rows))
    assert nothing == RowResult()
    assert [0 <= choice.token < 97 for choice in result.choices] == [True]


def test_a_step_of_nothing(tiny):
    assert make_executor(tiny).run(StepPlan([])) == []


def test_copies_run_before_the_rows(tiny):
    """A sequence goes on in copies of another's blocks, which change in the same step."""
    executor = make_executor(tiny)
    spec = SampleSpec(GREEDY, 21)
    expected = executor.run(StepPlan([Row([*PROMPT, 5], 0, [1, 2], [spec])]))
    executor.run(StepPlan([Row(PROMPT, 0, [3, 4])]))
    rows = [Row([5], 20, [7, 8], [spec]), Row([9] * 20, 0, [3, 4])]
    copies = [BlockCopy(3, 7), BlockCopy(4, 8)]
    assert executor.run(StepPlan(rows, copies))[:1] == expected


def test_sampled_tokens_do_not_depend_on_the_batch(tiny):
    params = [SamplingParams(temperature=1.0, top_p=0.9, seed=seed) for seed in range(4)]
    together, alone = Driver(make_executor(tiny)), Driver(make_executor(tiny))
    batch = [together.add(PROMPT[: 5 + i], 8, params[i]) for i in range(4)]
    for _ in range(8):
        together.step(batch)
    for i, sequence in enumerate(batch):
        single = alone.add(PROMPT[: 5 + i], 8, params[i])
        for _ in range(8):
            alone.step([single])
        assert single.output == sequence.output


def test_each_sample_of_a_row_is_as_if_it_were_alone(tiny):
    """n > 1: one row, a choice for each sample, by that sample's own random numbers."""
    executor = make_executor(tiny)
    params = SamplingParams(temperature=2.0, seed=5)
    specs = [SampleSpec(params, 20, index) for index in range(6)]
    both = executor.run(StepPlan([Row(PROMPT, 0, [1, 2], specs), Row([3], 0, [3], specs[:1])]))
    single = [executor.run(StepPlan([Row(PROMPT, 0, [1, 2], [spec])]))[0] for spec in specs]
    chosen = [choice.token for choice in both[0].choices]
    assert [choice.token for row in single for choice in row.choices] == chosen
    assert len(set(chosen)) > 1
    assert len(both[1].choices) == 1


@pytest.mark.parametrize("at_once", [1, 97 * 7, 1 << 20])
def test_targets_get_their_log_probabilities(tiny, at_once, monkeypatch):
    """Whether all logits fit at once or not, and whatever else is in the step."""
    monkeypatch.setattr("cache_node.row_results.LOGITS_AT_ONCE", at_once)
    executor = make_executor(tiny)
    spec = SampleSpec(GREEDY, 20)
    scored = Row(PROMPT, 0, [1, 2], [spec], targets=PROMPT[1:], prompt_logprobs=3)
    chunk = Row(PROMPT[:8], 0, [5], targets=PROMPT[1:9], prompt_logprobs=0)
    plain = Row([4, 5], 0, [3], [spec])
    found, first, other = executor.run(StepPlan([scored, chunk, plain]))
    expected = executor.prompt_logits(scored).double().log_softmax(dim=-1)
    for position, (score, target) in enumerate(zip(found.prompt_logprobs, PROMPT[1:], strict=True)):
        row = expected[position]
        assert score.logprob == pytest.approx(float(row[target]), abs=1e-4)
        assert score.rank == int((row > row[target]).sum()) + 1
        assert [token for token, _ in score.top] == row.topk(3).indices.tolist()
    assert [len(score.top) for score in first.prompt_logprobs] == [0] * 8
    assert [score.rank for score in first.prompt_logprobs] == [
        score.rank for score in found.prompt_logprobs[:8]
    ]
    assert other.prompt_logprobs == ()
    assert [len(result.choices) for result in (found, first, other)] == [1, 0, 1]
    assert found.choices[0].token == int(expected[-1].argmax())


def test_what_another_sequence_left_in_a_block_is_not_seen(tiny):
    executor = make_executor(tiny)
    spec = SampleSpec(GREEDY, 3)
    expected = executor.logits(StepPlan([Row(PROMPT[:3], 0, [1], [spec])]), [0])
    executor.pool.elements[1:] = 1e4
    found = executor.logits(StepPlan([Row(PROMPT[:3], 0, [1], [spec])]), [0])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_pool_size_comes_from_blocks_or_bytes(tiny):
    """3 layers, keys and values, 2 heads of 8 elements, 4 bytes: 384 bytes a token."""
    executor = make_executor(tiny, num_blocks=None, kv_cache_bytes=384 * 16 * 10 + 1)
    assert executor.layout.bytes_per_token == 384
    assert executor.num_blocks == 10
    assert executor.pool.elements.shape == (10, 3, 2, 2, 16, 8)
    assert make_executor(tiny, num_blocks=7).num_blocks == 7


@pytest.mark.parametrize("size", [10**15, 2**63 - 1])
def test_a_pool_that_no_machine_has_is_refused(tiny, size):
    with pytest.raises(ValueError, match=r"kv_cache_bytes: .* give the pool less"):
        make_executor(tiny, num_blocks=None, kv_cache_bytes=size)


def test_a_pool_without_room_for_a_block_is_refused(tiny):
    with pytest.raises(ValueError, match="kv_cache_bytes 1000"):
        make_executor(tiny, num_blocks=None, kv_cache_bytes=1000)

"""Log-probabilities of prompt and output in float32 are those of transformers' forward pass."""

import pytest
import torch

from cache_node.sampling import SampleSpec, SamplingParams
from cache_node.step_plan import Row, StepPlan
from kvmesh.tokenizer import Tokenizer
from tests.model_driver import make_executor, reference_model

TEXT = "The capital of France is Paris, and the capital of Germany is Berlin."
TOP = 5
TOLERANCE = 1e-3  # of a logarithm; both sum in float32


@torch.inference_mode()
def test_they_are_those_of_transformers(smollm2, monkeypatch):
    """In chunks of 7 tokens, whose logits are made three at a time."""
    monkeypatch.setattr("cache_node.row_results.LOGITS_AT_ONCE", 3 * 49_152)
    tokens = Tokenizer.from_directory(smollm2).encode(TEXT, add_special_tokens=False)
    reference = reference_model(smollm2, torch.float32)(torch.tensor([tokens])).logits[0]
    expected = reference.double().log_softmax(dim=-1)
    executor = make_executor(smollm2, num_blocks=8)
    spec = SampleSpec(SamplingParams(temperature=0.0, logprobs=TOP), len(tokens))
    scores = []
    for start in range(0, len(tokens), 7):
        chunk = tokens[start : start + 7]
        row = Row(
            chunk,
            start,
            [1, 2, 3],
            [spec] if start + 7 >= len(tokens) else (),
            targets=tokens[start + 1 : start + 8],
            prompt_logprobs=TOP,
        )
        result = executor.run(StepPlan([row]))[0]
        scores.extend(result.prompt_logprobs)
    scores.append(result.choices[0].logprobs)
    targets = [*tokens[1:], result.choices[0].token]
    assert len(scores) == len(tokens)
    for position, (score, target) in enumerate(zip(scores, targets, strict=True)):
        row = expected[position]
        assert score.logprob == pytest.approx(float(row[target]), abs=TOLERANCE)
        assert all(p == pytest.approx(float(row[token]), abs=TOLERANCE) for token, p in score.top)
        best = row.topk(TOP).values.tolist()
        assert [p for _, p in score.top] == pytest.approx(best, abs=TOLERANCE)
        near = (row - row[target]).abs() < TOLERANCE
        ahead = int(((row > row[target]) & ~near).sum())
        assert ahead < score.rank <= ahead + int(near.sum())

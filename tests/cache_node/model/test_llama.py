"""The paged forward pass computes what transformers computes, for each variant of the family."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiny_model import save_tiny

from cache_node.sampling import SampleSpec
from cache_node.step_plan import Row, StepPlan
from tests.model_driver import GREEDY, Driver, make_executor, reference_model

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "llama": ("Llama", {}),
    "tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "no grouping of heads": ("Llama", {"num_key_value_heads": 6}),
    "one KV head": ("Llama", {"num_key_value_heads": 1}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(tmp_path, variant):
    kind, config = VARIANTS[variant]
    directory = save_tiny(tmp_path, kind, **config)
    tokens = [(7 * i * i + 3) % 97 for i in range(200)]
    expected = _reference_logits(directory, tokens)
    executor = make_executor(directory, num_blocks=16)
    found = executor.prompt_logits(Row(tokens, 0, [*range(13, 0, -1)], None))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_older_spelling_of_rope_scaling(tmp_path):
    directory = save_tiny(tmp_path, rope_parameters=LLAMA3)
    tokens = [(5 * i + 1) % 97 for i in range(150)]
    expected = _reference_logits(directory, tokens)
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (directory / "config.json").write_text(json.dumps(config))
    found = make_executor(directory, num_blocks=16).prompt_logits(
        Row(tokens, 0, [*range(1, 11)], None)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_shards_are_one_model(tmp_path):
    tokens = [*range(40)]
    whole = make_executor(save_tiny(tmp_path / "whole"))
    shards = save_tiny(tmp_path / "shards", shard_size="40KB")
    assert len([*shards.glob("*.safetensors")]) > 1
    row = Row(tokens, 0, [1, 2, 3], None)
    torch.testing.assert_close(
        make_executor(shards).prompt_logits(row), whole.prompt_logits(row), rtol=0, atol=0
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("block_size", [1, 8, 16, 32, 64, 128])
def test_b14_block_size_changes_no_token(tiny, block_size):
    driver = Driver(make_executor(tiny, block_size=block_size, num_blocks=300))
    assert driver.generate([PROMPTS[2]], 6) == [_alone(tiny, PROMPTS[2], 6)]


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_batch_and_chunks_change_no_token(tiny, data):
    """Any mixture of prefill chunks and decode rows in a step gives the tokens of each alone."""
    chosen = data.draw(st.lists(st.integers(0, len(PROMPTS) - 1), min_size=1, max_size=5))
    chunk = data.draw(st.integers(1, 70))
    driver = Driver(make_executor(tiny, block_size=8, num_blocks=300))
    found = driver.generate([PROMPTS[i] for i in chosen], 6, chunk)
    assert found == [_alone(tiny, PROMPTS[i], 6) for i in chosen]


def test_long_prompts_are_computed_in_tiles(tiny):
    """Two rows with different cached prefixes, each longer than a tile of queries, in one step."""
    tokens = [(11 * i * i + 5 * i) % 97 for i in range(500)]
    executor = make_executor(tiny, block_size=16, num_blocks=100)
    tables = [range(1, 33), range(33, 65)]
    spec = SampleSpec(GREEDY, 500)
    executor.run(
        StepPlan([Row(tokens[:100], 0, tables[0]), Row(tokens[:3], 0, tables[1])])
    )
    rows = [Row(tokens[100:], 100, tables[0], [spec]), Row(tokens[3:], 3, tables[1], [spec])]
    found = executor.logits(StepPlan(rows), [0, 1])
    expected = _reference_logits(tiny, tokens)[-1]
    torch.testing.assert_close(found, torch.stack([expected] * 2), rtol=1e-4, atol=1e-4)


PROMPTS = [
    [(i * i * k + i) % 97 for i in range(n)] for k, n in enumerate((1, 2, 16, 17, 33, 64, 130))
]
_KNOWN: dict[tuple[int, ...], list[int]] = {}


def _alone(directory, prompt, new_tokens):
    """Greedy tokens by full forward passes of transformers."""
    if tuple(prompt) not in _KNOWN:
        tokens = list(prompt)
        for _ in range(new_tokens):
            tokens.append(int(_reference_logits(directory, tokens)[-1].argmax()))
        _KNOWN[tuple(prompt)] = tokens[len(prompt) :]
    return _KNOWN[tuple(prompt)]


@torch.inference_mode()
def _reference_logits(directory, tokens):
    return reference_model(directory, torch.float32)(torch.tensor([tokens])).logits[0]

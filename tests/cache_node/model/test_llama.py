"""The paged forward pass computes what transformers computes, for each variant of the family."""

import json
from functools import cache, lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cosine_similarity

from cache_node.sampling import SampleSpec
from cache_node.step_plan import Row, StepPlan
from tests.model_driver import GREEDY, Driver, make_executor, reference_model
from tests.tiny_model import save_tiny

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 50000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING, FULL = "sliding_attention", "full_attention"
WINDOW = {"use_sliding_window": True, "sliding_window": 21}
# Another head_dim than hidden_size / heads, and another scale than 1 / √head_dim.
GEMMA = {"sliding_window": 21, "head_dim": 16, "query_pre_attn_scalar": 24}
NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
GEMMA3 = {"layer_types": [SLIDING, FULL, SLIDING]}
VARIANTS = {
    "llama": ("Llama", {}),
    "tied embeddings": ("Llama", {"tie_word_embeddings": True}),
    "no grouping of heads": ("Llama", {"num_key_value_heads": 6}),
    "one KV head": ("Llama", {"num_key_value_heads": 1}),
    "biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral, window": ("Mistral", {"sliding_window": 21}),
    "qwen2": ("Qwen2", {}),
    "qwen2, window": ("Qwen2", WINDOW | {"max_window_layers": 1}),
    "qwen3": ("Qwen3", {}),
    "qwen3, window": ("Qwen3", WINDOW | {"layer_types": [FULL, SLIDING, FULL]}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 4.0, "final_logit_softcapping": 3.0}),
    "gemma2, no caps": ("Gemma2", GEMMA | NO_CAPS),
    "gemma3": ("Gemma3Text", GEMMA | GEMMA3),
    "gemma3, logit cap": ("Gemma3Text", GEMMA | {"final_logit_softcapping": 3.0}),
    "gemma3, scaled rope": ("Gemma3Text", GEMMA | GEMMA3 | {"rope_parameters": {FULL: LINEAR}}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_transformers(tmp_path, variant):
    kind, config = VARIANTS[variant]
    directory = save_tiny(tmp_path, kind, **config)
    tokens = [(7 * i * i + 3) % 97 for i in range(200)]
    expected = _reference_logits(directory, tokens)
    executor = make_executor(directory, num_blocks=16)
    found = executor.prompt_logits(Row(tokens, 0, [*range(13, 0, -1)], []))
    # Gemma 2 without caps: transformers' float32 is 1.5e-4 from its float64, and so are we.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=3e-4)


def test_older_spelling_of_rope_scaling(tmp_path):
    directory = save_tiny(tmp_path, rope_parameters=LLAMA3)
    tokens = [(5 * i + 1) % 97 for i in range(150)]
    expected = _reference_logits(directory, tokens)
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}
    (directory / "config.json").write_text(json.dumps(config))
    found = make_executor(directory, num_blocks=16).prompt_logits(
        Row(tokens, 0, [*range(1, 11)], [])
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_shards_are_one_model(tmp_path):
    tokens = [*range(40)]
    whole = make_executor(save_tiny(tmp_path / "whole"))
    shards = save_tiny(tmp_path / "shards", shard_size="40KB")
    assert len([*shards.glob("*.safetensors")]) > 1
    row = Row(tokens, 0, [1, 2, 3], [])
    torch.testing.assert_close(
        make_executor(shards).prompt_logits(row), whole.prompt_logits(row), rtol=0, atol=0
    )


FAMILIES = ("mistral, window", "qwen2, window", "qwen3, window", "gemma2", "gemma3")


@pytest.mark.parametrize("variant", FAMILIES)
def test_decode_and_chunks_of_a_ragged_batch_choose_what_transformers_chooses(tmp_path, variant):
    """Prompts shorter and longer than the window of 21, chunks that end inside it."""
    kind, config = VARIANTS[variant]
    directory = save_tiny(tmp_path, kind, **config)
    driver = Driver(make_executor(directory, block_size=8, num_blocks=300))
    expected = [_alone(directory, prompt, 30) for prompt in PROMPTS]
    assert driver.generate(PROMPTS, 30) == expected
    assert driver.generate(PROMPTS, 30, chunk=13) == expected


@pytest.mark.parametrize("variant", FAMILIES)
def test_bfloat16_is_near(tmp_path, variant):
    kind, config = VARIANTS[variant]
    directory = save_tiny(tmp_path, kind, **config)
    row = Row([(7 * i * i + 3) % 97 for i in range(200)], 0, [*range(13, 0, -1)], [])
    exact = make_executor(directory, num_blocks=16).prompt_logits(row)
    rounded = make_executor(directory, "bfloat16", num_blocks=16).prompt_logits(row)
    assert cosine_similarity(exact, rounded).mean() > 0.99


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
    executor.run(StepPlan([Row(tokens[:100], 0, tables[0]), Row(tokens[:3], 0, tables[1])]))
    rows = [Row(tokens[100:], 100, tables[0], [spec]), Row(tokens[3:], 3, tables[1], [spec])]
    found = executor.logits(StepPlan(rows), [0, 1])
    expected = _reference_logits(tiny, tokens)[-1]
    torch.testing.assert_close(found, torch.stack([expected] * 2), rtol=1e-4, atol=1e-4)


PROMPTS = [
    [(i * i * k + i) % 97 for i in range(n)] for k, n in enumerate((1, 2, 16, 17, 33, 64, 130))
]


@cache
def _known(directory, prompt, new_tokens):
    tokens = list(prompt)
    for _ in range(new_tokens):
        tokens.append(int(_reference_logits(directory, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def _alone(directory, prompt, new_tokens):
    """Greedy tokens by full forward passes of transformers."""
    return _known(directory, tuple(prompt), new_tokens)


@torch.inference_mode()
def _reference_logits(directory, tokens):
    return _reference(directory)(torch.tensor([tokens]), use_cache=False).logits[0]


@lru_cache(maxsize=2)
def _reference(directory):
    return reference_model(directory, torch.float32)

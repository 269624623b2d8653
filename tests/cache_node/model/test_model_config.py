"""What a config.json may ask for, and what is refused by name."""

import pytest

from cache_node.model.config_fields import UnsupportedModelError
from cache_node.model.layer_config import LayerConfig, RopeConfig
from cache_node.model.model_config import ModelConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def test_defaults_are_those_of_the_format():
    config = ModelConfig.from_json(LLAMA)
    assert (config.num_kv_heads, config.head_dim) == (4, 16)
    assert config.layers == (LayerConfig(RopeConfig(original_max_positions=256)),) * 2
    assert not config.tied_embeddings


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"architectures": ["BertModel"]}, "BertModel"),
        ({"architectures": None}, "architecture"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_scaling": {"type": "yarn", "factor": 4}}, "yarn"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "dynamic"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 64}, "sliding_window"),
        ({"layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"architectures": ["Gemma3ForCausalLM"], "sliding_window": None}, "sliding_window"),
        ({"architectures": ["Gemma3ForConditionalGeneration"]}, "ConditionalGeneration"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers must be at most"),
        ({"layer_types": 5}, "not of its type"),
        ({"rope_scaling": "x", "rope_parameters": None}, "not of its type"),
    ],
)
def test_what_is_not_supported_is_named(change, word):
    with pytest.raises(UnsupportedModelError, match=word):
        ModelConfig.from_json({**LLAMA, **change})


def test_a_window_as_long_as_the_context_is_full_attention():
    mistral = {**LLAMA, "architectures": ["MistralForCausalLM"], "sliding_window": 256}
    assert ModelConfig.from_json(mistral).max_positions == 256


def test_a_directory_without_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"config\.json"):
        ModelConfig.from_directory(tmp_path)

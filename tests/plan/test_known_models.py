"""The table of known models, and how weights are counted: as published, and as they are."""

import pytest
import torch
import transformers
from safetensors.torch import load_file

from cache_node.plan.find_shape import find_shape, known_name
from cache_node.plan.known_models import KNOWN_MODELS
from tests.tiny_model import save_tiny

# What model cards and reports say, in billions.
PUBLISHED = {
    "llama-65b": 65.2,
    "llama-2-7b": 6.74,
    "llama-2-13b": 13.0,
    "llama-2-70b": 69.0,
    "llama-3-8b": 8.03,
    "llama-3-70b": 70.6,
    "llama-3.1-405b": 406,
    "llama-3.2-1b": 1.24,
    "llama-3.2-3b": 3.21,
    "mistral-7b-v0.1": 7.24,
    "mistral-7b-v0.3": 7.25,
    "mixtral-8x7b": 46.7,
    "mixtral-8x22b": 141,
    "qwen2-0.5b": 0.49,
    "qwen2.5-3b": 3.09,
    "qwen2.5-7b": 7.61,
    "qwen2.5-14b": 14.7,
    "qwen2.5-32b": 32.5,
    "qwen2.5-72b": 72.7,
    "qwen3-8b": 8.2,
    "qwen3-30b-a3b": 30.5,
    "qwen3-235b-a22b": 235,
    "gemma-2-2b": 2.61,
    "gemma-2-9b": 9.24,
    "gemma-2-27b": 27.2,
    "gemma-3-270m": 0.268,
    "gemma-3-1b": 1.0,
    "deepseek-v2-lite": 15.7,
    "deepseek-v2": 236,
    "deepseek-v3": 671,
    "phi-3-mini-4k": 3.82,
    "phi-3-medium-4k": 14.0,
    "smollm2-135m": 0.135,
    "smollm2-360m": 0.362,
    "smollm2-1.7b": 1.71,
}
FAMILIES = {
    "llama-3-8b": "Llama",
    "mistral-7b-v0.1": "Mistral",
    "mixtral-8x7b": "Mixtral",
    "qwen2.5-7b": "Qwen2",
    "qwen3-8b": "Qwen3",
    "qwen3-30b-a3b": "Qwen3Moe",
    "gemma-2-2b": "Gemma2",
    "gemma-3-1b": "Gemma3Text",
    "deepseek-v2-lite": "DeepseekV2",
    "deepseek-v3": "DeepseekV3",
    "phi-3-mini-4k": "Phi3",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_weights_are_as_many_as_published(name):
    assert find_shape(name).parameters.total / 1e9 == pytest.approx(PUBLISHED[name], rel=0.01)


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_counted_as_transformers_builds_them(name):
    """To the last one, of the whole model: on the meta device nothing is allocated."""
    family = FAMILIES[name]
    fields = {**KNOWN_MODELS[name].fields, "quantization_config": None}
    config = getattr(transformers, f"{family}Config")(**fields)
    with torch.device("meta"):
        model = getattr(transformers, f"{family.removesuffix('Text')}ForCausalLM")(config)
    counted = find_shape(name).parameters.total
    assert counted - _gate_biases(fields) == model.num_parameters()


def _gate_biases(fields):
    """DeepSeek-V3's are weights of the checkpoint, but buffers in transformers."""
    if fields.get("topk_method") != "noaux_tc":
        return 0
    layers = fields["num_hidden_layers"] - fields["first_k_dense_replace"]
    return layers * fields["n_routed_experts"]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "Gemma3Text"])
def test_a_directory_has_the_weights_that_are_counted(tmp_path, kind):
    directory = save_tiny(tmp_path / "tiny", kind)
    stored = load_file(directory / "model.safetensors")
    counted = find_shape(str(directory)).parameters.total
    assert counted == sum(tensor.numel() for tensor in stored.values())


def test_the_converted_gguf_of_smollm2_is_the_model_of_that_name(smollm2):
    known, converted = find_shape("smollm2-135m-instruct"), find_shape(str(smollm2))
    names = {"name", "source"}
    assert _without(names, converted) == _without(names, known)


def _without(names, shape):
    return {name: getattr(shape, name) for name in shape.__slots__ if name not in names}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("meta-llama/Meta-Llama-3-70B-Instruct", "llama-3-70b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("google/gemma-3-27b-it", "gemma-3-27b"),
        ("SmolLM2-135M-Instruct", "smollm2-135m"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
    ],
)
def test_names_of_the_hub_are_known(given, name):
    assert known_name(given) == name
    assert find_shape(given).name == name

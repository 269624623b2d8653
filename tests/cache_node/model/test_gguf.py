"""A converted GGUF file is the model it was made from."""

import json

import pytest
import torch
from safetensors.torch import load_file

from cache_node.model.config_fields import UnsupportedModelError
from cache_node.model.gguf_convert import convert_gguf
from cache_node.model.model_config import ModelConfig
from kvmesh.tokenizer import Tokenizer
from tests.cache_node.model.gguf_file import PIECES, write_gguf
from tests.tiny_model import save_tiny


@pytest.fixture
def convert(tmp_path):
    def run(config=None, **changes):
        model = save_tiny(tmp_path / "model", **(config or {}))
        gguf = write_gguf(tmp_path / "model.gguf", model, **changes)
        convert_gguf(gguf, tmp_path / "converted", lambda fraction: None)
        return model, tmp_path / "converted"

    return run


@pytest.mark.parametrize("tied", [True, False])
def test_tensors_come_back_in_bfloat16(convert, tied):
    model, converted = convert({"tie_word_embeddings": tied})
    expected = load_file(model / "model.safetensors")
    found = load_file(converted / "model.safetensors")
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor.bfloat16(), rtol=0, atol=0)


def test_config_comes_back(convert):
    model, converted = convert()
    assert ModelConfig.from_directory(converted) == ModelConfig.from_directory(model)
    assert ModelConfig.from_directory(converted).rms_norm_eps == 1e-5


def test_linear_rope_scaling_comes_back(convert):
    _, converted = convert(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)
    rope = ModelConfig.from_directory(converted).layers[0].rope
    assert (rope.rope_type, rope.factor) == ("linear", 4.0)


def test_tokenizer_comes_back(convert):
    _, converted = convert()
    tokenizer = Tokenizer.from_directory(converted)
    assert tokenizer.encode("ab a<|end|>", add_special_tokens=True) == [5, 2, 3, 0]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (0,))
    assert tokenizer.apply_chat_template([{"content": "x"}]) == "x"


def test_a_bos_token_is_added_where_the_file_says_so(convert):
    _, converted = convert(tokenizer__ggml__add_bos_token=True)
    tokenizer = Tokenizer.from_directory(converted)
    assert tokenizer.encode("ab", add_special_tokens=True) == [1, 5]
    assert tokenizer.encode("ab", add_special_tokens=False) == [5]


def test_end_of_turn_ends_a_generation_too(convert):
    _, converted = convert(tokenizer__ggml__eot_token_id=3)
    assert Tokenizer.from_directory(converted).eos_token_ids == (0, 3)
    assert json.loads((converted / "config.json").read_text())["eos_token_id"] == 0


@pytest.fixture
def gemma(tmp_path):
    def run(**changes):
        sizes = {"num_hidden_layers": 7, "sliding_window": 32, "query_pre_attn_scalar": 8}
        model = save_tiny(tmp_path / "model", "Gemma3Text", tie_word_embeddings=True, **sizes)
        gguf = write_gguf(tmp_path / "model.gguf", model, "gemma3", **changes)
        convert_gguf(gguf, tmp_path / "converted", lambda fraction: None)
        return model, tmp_path / "converted"

    return run


def test_gemma3_comes_back(gemma):
    model, converted = gemma()
    assert ModelConfig.from_directory(converted) == ModelConfig.from_directory(model)
    expected = load_file(model / "model.safetensors")
    found = load_file(converted / "model.safetensors")
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() < 0.01, name


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("abc", ["abc"]),  # by way of "bc"
        ("a ab", ["a", "▁", "ab"]),  # the best score merges first, though "▁a" is further left
        ("b a", ["b", "▁a"]),
        ("     a", ["▁▁▁", "▁▁", "a"]),  # user-defined: the longest first, merged with nothing
        ("a\n\nb", ["a", "\n\n", "b"]),
        ("é", ["<0xC3>", "<0xA9>"]),
        ("b<eos>", ["b", "<eos>"]),
        ("x", ["<unk>"]),
    ],
)
def test_a_sentencepiece_tokenizer_comes_back(gemma, text, pieces):
    _, converted = gemma()
    ids = {piece.replace(" ", "▁"): index for index, (piece, _, _) in enumerate(PIECES)}
    tokenizer = Tokenizer.from_directory(converted)
    found = tokenizer.encode(text, add_special_tokens=True)
    assert found == [ids["<bos>"], *(ids[piece] for piece in pieces)]
    if text not in ("x", "b<eos>"):
        assert tokenizer.decode(found) == text


def test_a_sentencepiece_tokenizer_with_a_space_in_front_is_refused(gemma):
    with pytest.raises(UnsupportedModelError, match="add_space_prefix"):
        gemma(tokenizer__ggml__add_space_prefix=None)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"architecture": "gemma"}, "gemma"),
        ({"llama__expert_count": 8}, "experts"),
        ({"tokenizer__ggml__model": "bert"}, "tokenizer 'bert'"),
        ({"tokenizer__ggml__pre": "unheard-of"}, "unheard-of"),
        ({"llama__rope__scaling__type": "yarn"}, "yarn"),
        ({"llama__context_length": None}, r"llama\.context_length"),
    ],
)
def test_what_is_not_supported_is_named(convert, changes, word):
    with pytest.raises(UnsupportedModelError, match=word):
        convert(**changes)

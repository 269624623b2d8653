"""Writes small GGUF files, in the way of llama.cpp's converter."""

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

from cache_node.model.gguf_config import GGUF_ARCHITECTURES, GLOBAL_TENSORS, LAYER_TENSORS

TOKENS = ["<|end|>", "<|start|>", "Ġ", "a", "b", "ab", *(f"t{i}" for i in range(91))]


# Types: 1 normal, 2 unknown, 3 control, 4 user-defined, 6 byte. The best score merges first.
PIECES = [
    *(("<eos>", 3, 0.0), ("<bos>", 3, 0.0), ("<unk>", 2, 0.0), ("  ", 4, 0.0), ("   ", 4, 0.0)),
    *(("▁", 1, -9.0), ("a", 1, -9.0), ("b", 1, -9.0), ("c", 1, -9.0), ("bc", 1, -1.0)),
    *(("ab", 1, -2.0), ("abc", 1, -3.0), ("▁a", 1, -4.0), ("\n\n", 4, 0.0)),
    *((f"<0x{byte:02X}>", 6, 0.0) for byte in (0xC3, 0xA9)),
    *((f"t{i}", 1, -9.0) for i in range(81)),
]


def write_gguf(path: Path, model: Path, architecture: str = "llama", **changes: Any) -> Path:
    """A GGUF file of the model in directory `model`. `changes` replace metadata by the last
    parts of its key with __ for the dots; None leaves the key out."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(path, architecture)
    metadata = _model(config) | (_rest(config) if architecture == "gemma3" else {})
    metadata = {f"{architecture}__{key}": value for key, value in metadata.items()}
    metadata |= _sentencepiece() if architecture == "gemma3" else _byte_level()
    for key, value in (metadata | changes).items():
        _add(writer, key.replace("__", "."), value)
    for name, tensor in load_file(model / "model.safetensors").items():
        written = _as_written(name, tensor, config, architecture)
        writer.add_tensor(_gguf_name(name, architecture), written.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _model(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention__head_count": config["num_attention_heads"],
        "attention__head_count_kv": config["num_key_value_heads"],
        "attention__key_length": config["head_dim"],
        "attention__layer_norm_rms_epsilon": 1e-5,
        "rope__freq_base": 10000.0,
    }


def _rest(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention__sliding_window": config["sliding_window"],
        "rope__freq_base": 1_000_000.0,
    }


def _byte_level() -> dict[str, Any]:
    return {
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "smollm",
        "tokenizer__ggml__tokens": TOKENS,
        "tokenizer__ggml__token_type": [3, 3, *([1] * 95)],
        "tokenizer__ggml__merges": ["a b"],
        "tokenizer__ggml__bos_token_id": 1,
        "tokenizer__ggml__eos_token_id": 0,
        "tokenizer__chat_template": "{{ messages[0].content }}",
    }


def _sentencepiece() -> dict[str, Any]:
    pieces, types, scores = (list(column) for column in zip(*PIECES, strict=True))
    return {
        "tokenizer__ggml__model": "llama",
        "tokenizer__ggml__pre": "default",
        "tokenizer__ggml__tokens": pieces,
        "tokenizer__ggml__token_type": types,
        "tokenizer__ggml__scores": scores,
        "tokenizer__ggml__bos_token_id": 1,
        "tokenizer__ggml__eos_token_id": 0,
        "tokenizer__ggml__unknown_token_id": 2,
        "tokenizer__ggml__add_bos_token": True,
        "tokenizer__ggml__add_space_prefix": False,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    if value is not None:
        adders[type(value)](key, value)


def _gguf_name(name: str, architecture: str) -> str:
    stem = name.removesuffix(".weight")
    known = GGUF_ARCHITECTURES.get(architecture)
    layer_tensors = known.layer_tensors if known else LAYER_TENSORS
    globals_, layers = ({v: k for k, v in d.items()} for d in (GLOBAL_TENSORS, layer_tensors))
    if stem in globals_:
        return f"{globals_[stem]}.weight"
    index, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{index}.{layers[part]}.weight"


def _as_written(
    name: str, tensor: torch.Tensor, config: dict[str, Any], architecture: str
) -> torch.Tensor:
    """Llama: in each head of Q and K, rows of the two halves alternate. Gemma: norms plus one."""
    if architecture == "gemma3":
        return tensor + 1 if "norm" in name else tensor
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    found = [key for part, key in heads.items() if part in name]
    if not found:
        return tensor
    halves = tensor.view(config[found[0]], 2, -1, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()

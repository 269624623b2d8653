"""Writes small GGUF files, in the way of llama.cpp's converter."""

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from safetensors.torch import load_file

from cache_node.model.gguf_convert import GLOBAL_TENSORS, LAYER_TENSORS

TOKENS = ["<|end|>", "<|start|>", "Ġ", "a", "b", "ab", *(f"t{i}" for i in range(91))]


def write_gguf(path: Path, model: Path, **changes: Any) -> Path:
    """A GGUF file of the Llama model in directory `model`. `changes` replace metadata by the last
    parts of its key with __ for the dots; None leaves the key out."""
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    for key, value in (_metadata(config) | changes).items():
        _add(writer, key.replace("__", "."), value)
    for name, tensor in load_file(model / "model.safetensors").items():
        writer.add_tensor(_gguf_name(name), _as_written(name, tensor, config).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "llama__context_length": config["max_position_embeddings"],
        "llama__embedding_length": config["hidden_size"],
        "llama__block_count": config["num_hidden_layers"],
        "llama__feed_forward_length": config["intermediate_size"],
        "llama__attention__head_count": config["num_attention_heads"],
        "llama__attention__head_count_kv": config["num_key_value_heads"],
        "llama__attention__key_length": config["head_dim"],
        "llama__attention__layer_norm_rms_epsilon": 1e-5,
        "llama__rope__freq_base": 10000.0,
        "tokenizer__ggml__model": "gpt2",
        "tokenizer__ggml__pre": "smollm",
        "tokenizer__ggml__tokens": TOKENS,
        "tokenizer__ggml__token_type": [3, 3, *([1] * 95)],
        "tokenizer__ggml__merges": ["a b"],
        "tokenizer__ggml__bos_token_id": 1,
        "tokenizer__ggml__eos_token_id": 0,
        "tokenizer__chat_template": "{{ messages[0].content }}",
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


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    globals_, layers = ({v: k for k, v in d.items()} for d in (GLOBAL_TENSORS, LAYER_TENSORS))
    if stem in globals_:
        return f"{globals_[stem]}.weight"
    index, part = stem.removeprefix("model.layers.").split(".", 1)
    return f"blk.{index}.{layers[part]}.weight"


def _as_written(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> torch.Tensor:
    """In each head of Q and K, rows of the two halves alternate."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    found = [key for part, key in heads.items() if part in name]
    if not found:
        return tensor
    halves = tensor.view(config[found[0]], 2, -1, tensor.shape[1])
    return halves.transpose(1, 2).reshape(tensor.shape).contiguous()

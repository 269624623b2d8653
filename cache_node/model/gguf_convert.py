"""Converts a GGUF file of the Llama architecture into a directory of the usual kind.

Facts about the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and llama.cpp's
writer, which permutes the rows of Q and K so that the two elements that rotate together are
neighbours.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors.torch import save_file

from cache_node.model.config_fields import UnsupportedModelError
from cache_node.model.gguf_tokenizer import tokenizer_config, tokenizer_json

CONVERTER_VERSION = 1
"""Part of the cache directory's name: raise it when the output changes."""

GLOBAL_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufMetadata:
    """The key-value part of a GGUF file. `required` raises UnsupportedModelError with the key's
    name.
    """

    def __init__(self, reader: GGUFReader) -> None:
        self._reader = reader

    def get(self, key: str, default: Any = None) -> Any:
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def required(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise UnsupportedModelError(f"the GGUF file has no {key}")
        return value


def convert_gguf(gguf: Path, directory: Path, progress: Callable[[float], None]) -> None:
    """Writes config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja,
    generation_config.json and model.safetensors (bfloat16) to `directory`, which is made.

    Raises UnsupportedModelError for another architecture, tokenizer or tensor.
    """
    reader = GGUFReader(gguf)
    metadata = GgufMetadata(reader)
    config = _config(metadata, tied="output.weight" not in {t.name for t in reader.tensors})
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer_json(metadata),
        "tokenizer_config.json": tokenizer_config(metadata),
        "generation_config.json": _generation_config(metadata),
    }
    tensors = {}
    for done, tensor in enumerate(reader.tensors):
        progress(done / len(reader.tensors))
        tensors[_checkpoint_name(tensor.name)] = _to_bfloat16(tensor, config)
    directory.mkdir(parents=True)
    for name, content in files.items():
        _write_text(directory / name, json.dumps(content, ensure_ascii=False, indent=1))
    if template := metadata.get("tokenizer.chat_template"):
        _write_text(directory / "chat_template.jinja", template)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    progress(1.0)


def _config(metadata: GgufMetadata, tied: bool) -> dict[str, Any]:
    architecture = metadata.required("general.architecture")
    if architecture != "llama" or metadata.get("llama.expert_count"):
        raise UnsupportedModelError(
            f"GGUF architecture {architecture!r} is not supported; only 'llama' without experts "
            "is. Use a safetensors directory instead"
        )
    heads = int(metadata.required("llama.attention.head_count"))
    hidden = int(metadata.required("llama.embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(metadata.required("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": int(metadata.required("llama.feed_forward_length")),
        "num_hidden_layers": int(metadata.required("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv", heads)),
        "head_dim": int(metadata.get("llama.attention.key_length", hidden // heads)),
        "max_position_embeddings": int(metadata.required("llama.context_length")),
        "rms_norm_eps": _shortest(metadata.required("llama.attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(metadata),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
        **_special_ids(metadata),
    }


def _rope(metadata: GgufMetadata) -> dict[str, Any]:
    theta = _shortest(metadata.get("llama.rope.freq_base", 10000.0))
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if scaling == "linear":
        factor = _shortest(metadata.required("llama.rope.scaling.factor"))
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    raise UnsupportedModelError(f"llama.rope.scaling.type {scaling!r} is not supported")


def _special_ids(metadata: GgufMetadata) -> dict[str, int]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return {name: int(value) for name, value in ids.items() if value is not None}


def _generation_config(metadata: GgufMetadata) -> dict[str, Any]:
    """End-of-turn differs from end-of-sequence in some models; both end a generation."""
    ids: dict[str, Any] = dict(_special_ids(metadata))
    turn_end = metadata.get("tokenizer.ggml.eot_token_id")
    if turn_end is not None and turn_end != ids.get("eos_token_id"):
        ids["eos_token_id"] = [*([ids["eos_token_id"]] if "eos_token_id" in ids else []), turn_end]
    return ids


def _checkpoint_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if kind == "weight" and stem in GLOBAL_TENSORS:
        return f"{GLOBAL_TENSORS[stem]}.weight"
    prefix, _, rest = stem.partition(".")
    layer, _, part = rest.partition(".")
    if kind == "weight" and prefix == "blk" and part in LAYER_TENSORS:
        return f"model.layers.{layer}.{LAYER_TENSORS[part]}.weight"
    raise UnsupportedModelError(f"GGUF tensor {name} is not supported: not a plain Llama model")


def _to_bfloat16(tensor: ReaderTensor, config: dict[str, Any]) -> torch.Tensor:
    """GGUF lists the innermost dimension first."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shape)
    if tensor.name.endswith("attn_q.weight"):
        values = _separate_halves(values, config["num_attention_heads"])
    if tensor.name.endswith("attn_k.weight"):
        values = _separate_halves(values, config["num_key_value_heads"])
    return torch.from_numpy(np.ascontiguousarray(values)).bfloat16()


def _separate_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of a head's rows: pairs (0, d/2), (1, d/2 + 1), … back to two
    halves.
    """
    rows, inputs = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, inputs)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, inputs)


def _shortest(value: float) -> float:
    """The decimal that a float32 stands for: 1e-05 rather than 9.99999974e-06."""
    return float(str(np.float32(value)))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n" if path.suffix == ".json" else text, encoding="utf-8")

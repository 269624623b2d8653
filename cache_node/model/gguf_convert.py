"""Converts a GGUF file into a directory of the usual kind.

Facts about the format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and llama.cpp's
writer, which permutes the rows of Llama's Q and K so that the two elements that rotate together are
neighbours, and adds Gemma's 1 to the weights of norms.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import ReaderTensor
from gguf.quants import dequantize
from safetensors.torch import save_file

from cache_node.model.gguf_config import GgufArchitecture, gguf_architecture, gguf_config
from cache_node.model.gguf_metadata import GgufMetadata, PlainGgufReader
from cache_node.model.gguf_tokenizer import tokenizer_config, tokenizer_json

CONVERTER_VERSION = 2
"""Part of the cache directory's name: raise it when the output changes."""


def convert_gguf(gguf: Path, directory: Path, progress: Callable[[float], None]) -> None:
    """Writes config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja,
    generation_config.json and model.safetensors (bfloat16) to `directory`, which is made.

    Raises UnsupportedModelError for another architecture, tokenizer or tensor.
    """
    reader = PlainGgufReader(gguf)
    metadata = GgufMetadata(reader)
    architecture = gguf_architecture(metadata)
    config = gguf_config(metadata, tied="output.weight" not in {t.name for t in reader.tensors})
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer_json(metadata),
        "tokenizer_config.json": tokenizer_config(metadata),
        "generation_config.json": _generation_config(metadata),
    }
    tensors = {}
    for done, tensor in enumerate(reader.tensors):
        progress(done / len(reader.tensors))
        name = architecture.checkpoint_name(tensor.name)
        tensors[name] = _to_bfloat16(tensor, architecture, config)
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(_json(content) + "\n", encoding="utf-8")
    if template := metadata.get("tokenizer.chat_template"):
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    progress(1.0)


def _generation_config(metadata: GgufMetadata) -> dict[str, Any]:
    """End-of-turn differs from end-of-sequence in some models; both end a generation."""
    ids: dict[str, Any] = dict(metadata.special_ids())
    ids.pop("unk_token_id", None)
    turn_end = metadata.get("tokenizer.ggml.eot_token_id")
    if turn_end is not None and turn_end != ids.get("eos_token_id"):
        ids["eos_token_id"] = [*([ids["eos_token_id"]] if "eos_token_id" in ids else []), turn_end]
    return ids


def _to_bfloat16(
    tensor: ReaderTensor, architecture: GgufArchitecture, config: dict[str, Any]
) -> torch.Tensor:
    """GGUF lists the innermost dimension first."""
    shape = tuple(int(size) for size in reversed(tensor.shape))
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    values = values.reshape(shape)
    if architecture.norm_offset and tensor.name.endswith("norm.weight"):
        values = values - np.float32(architecture.norm_offset)
    if architecture.pairs and tensor.name.endswith("attn_q.weight"):
        values = _separate_halves(values, config["num_attention_heads"])
    if architecture.pairs and tensor.name.endswith("attn_k.weight"):
        values = _separate_halves(values, config["num_key_value_heads"])
    return torch.tensor(values, dtype=torch.bfloat16)


def _separate_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Undoes llama.cpp's order of a head's rows: pairs (0, d/2), (1, d/2 + 1), … back to two
    halves.
    """
    rows, inputs = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, inputs)
    return pairs.transpose(0, 2, 1, 3).reshape(rows, inputs)


def _json(content: dict[str, Any]) -> str:
    """Without line breaks in large ones: a vocabulary with its merges is half a million lists."""
    is_large = "model" in content
    return json.dumps(content, ensure_ascii=False, indent=None if is_large else 1)

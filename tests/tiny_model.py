"""Random models of a few kilobytes, saved as transformers saves real ones."""

from itertools import product
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

TINY = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # large, so that the most probable token is clear
}


def save_tiny(directory: Path, kind: str = "Llama", shard_size: str = "1GB", **config: Any) -> Path:
    """Saves a random model of `kind` (Llama, Gemma3Text, …) and returns its directory."""
    torch.manual_seed(0)
    settings = getattr(transformers, f"{kind}Config")(**{**TINY, **config})
    model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(settings)
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
    model.save_pretrained(directory, max_shard_size=shard_size)
    return directory


def add_kv_scales(directory: Path, scale: float) -> None:
    """What a checkpoint made for an fp8 KV cache has: the same scale for all keys and values."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    layers = {name.split(".")[2] for name in tensors if name.startswith("model.layers.")}
    for layer, part in product(layers, "kv"):
        tensors[f"model.layers.{layer}.self_attn.{part}_scale"] = torch.tensor(scale)
    save_file(tensors, path, metadata={"format": "pt"})

"""Random models of a few kilobytes, saved as transformers saves real ones."""

from pathlib import Path
from typing import Any

import torch
import transformers

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

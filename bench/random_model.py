"""A random Llama so small that a step of it takes no time, with a real model's tokenizer."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from kvmesh.tokenizer import TOKENIZER_FILES, Tokenizer

HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 16, 32, 2, 2, 1, 8
CONTEXT = 1024


def write_random_model(directory: Path, real: Path) -> Path:
    """Writes it to `directory`, which must exist, with the tokenizer of the model in `real`."""
    for name in TOKENIZER_FILES:
        if (real / name).exists():
            shutil.copy(real / name, directory)
    vocabulary = Tokenizer.from_directory(real).vocab_size
    (directory / "config.json").write_text(json.dumps(_config(vocabulary)))
    random = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=random) * 0.3
        for name, shape in _shapes(vocabulary).items()
    }
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def _config(vocabulary: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    }


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (HIDDEN,),
            f"{prefix}.post_attention_layernorm.weight": (HIDDEN,),
            f"{prefix}.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": (MLP, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": (MLP, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": (HIDDEN, MLP),
        }
    return shapes

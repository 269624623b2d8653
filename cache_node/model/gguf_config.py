"""config.json from the metadata of a GGUF file, and what llama.cpp's writer did to the tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cache_node.model.config_fields import UnsupportedModelError
from cache_node.model.gguf_metadata import GgufMetadata

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
GEMMA3_LAYER_TENSORS = LAYER_TENSORS | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def gguf_config(metadata: GgufMetadata, tied: bool) -> dict[str, Any]:
    """The content of config.json. Raises UnsupportedModelError with the name of the key."""
    architecture = gguf_architecture(metadata)
    heads = int(metadata.model_required("attention.head_count"))
    hidden = int(metadata.model_required("embedding_length"))
    return {
        "vocab_size": len(metadata.required("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": int(metadata.model_required("feed_forward_length")),
        "num_hidden_layers": int(metadata.model_required("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(metadata.model("attention.head_count_kv", heads)),
        "head_dim": int(metadata.model("attention.key_length", hidden // heads)),
        "max_position_embeddings": int(metadata.model_required("context_length")),
        "rms_norm_eps": _shortest(metadata.model_required("attention.layer_norm_rms_epsilon")),
        "attention_bias": False,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
        **{name: i for name, i in metadata.special_ids().items() if name != "unk_token_id"},
        **architecture.fields(metadata),
    }


def _llama(metadata: GgufMetadata) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_parameters": _rope(metadata, 10_000.0),
        "hidden_act": "silu",
        "mlp_bias": False,
    }


def _gemma3(metadata: GgufMetadata) -> dict[str, Any]:
    """The local rotary base, the pattern of the layers and the scale of the scores are in no key:
    they are the same for the whole family, but for the scale of the 27B model.
    """
    heads = int(metadata.model_required("attention.head_count"))
    layers = int(metadata.model_required("block_count"))
    is_27b = layers == 62
    scalar = int(metadata.model_required("embedding_length")) // heads
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": int(metadata.model_required("attention.sliding_window")),
        "layer_types": [
            "full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)
        ],
        "query_pre_attn_scalar": scalar
        if is_27b
        else int(metadata.model_required("attention.key_length")),
        "final_logit_softcapping": metadata.model("final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": _rope(metadata, 1_000_000.0),
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": _shortest(metadata.model("rope.freq_base_swa", 10_000.0)),
            },
        },
    }


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """How a family is written to GGUF files by llama.cpp's converter."""

    fields: Callable[[GgufMetadata], dict[str, Any]]  # of config.json
    layer_tensors: Mapping[str, str] = field(default_factory=lambda: LAYER_TENSORS)
    pairs: bool = False  # rows of Q and K that rotate together are neighbours
    norm_offset: float = 0.0  # was added to the weights of norms

    def checkpoint_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if kind == "weight" and stem in GLOBAL_TENSORS:
            return f"{GLOBAL_TENSORS[stem]}.weight"
        prefix, _, rest = stem.partition(".")
        layer, _, part = rest.partition(".")
        if kind == "weight" and prefix == "blk" and part in self.layer_tensors:
            return f"model.layers.{layer}.{self.layer_tensors[part]}.weight"
        raise UnsupportedModelError(
            f"GGUF tensor {name} is not supported; use a safetensors directory instead"
        )


GGUF_ARCHITECTURES = {
    "llama": GgufArchitecture(_llama, pairs=True),
    "gemma3": GgufArchitecture(_gemma3, GEMMA3_LAYER_TENSORS, norm_offset=1.0),
}


def gguf_architecture(metadata: GgufMetadata) -> GgufArchitecture:
    """Raises UnsupportedModelError unless it is one of GGUF_ARCHITECTURES, without experts."""
    found = GGUF_ARCHITECTURES.get(metadata.architecture)
    if found is None or metadata.model("expert_count"):
        raise UnsupportedModelError(
            f"GGUF architecture {metadata.architecture!r} is not supported; supported, without "
            f"experts: {', '.join(GGUF_ARCHITECTURES)}. Use a safetensors directory instead"
        )
    return found


def _rope(metadata: GgufMetadata, default_theta: float) -> dict[str, Any]:
    theta = _shortest(metadata.model("rope.freq_base", default_theta))
    scaling = metadata.model("rope.scaling.type", "none")
    if scaling == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if scaling == "linear":
        factor = _shortest(metadata.model_required("rope.scaling.factor"))
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    raise UnsupportedModelError(
        f"{metadata.architecture}.rope.scaling.type {scaling!r} is not supported"
    )


def _shortest(value: float) -> float:
    """The decimal that a float32 stands for: 1e-05 rather than 9.99999974e-06."""
    return float(str(np.float32(value)))

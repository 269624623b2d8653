"""The architectures that one forward pass computes, as the data in which they differ."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cache_node.model.config_fields import UnsupportedModelError

Fields = Mapping[str, Any]


def _every_layer(fields: Fields, _layer: int) -> bool:
    return bool(fields["sliding_window"])


def _upper_layers(fields: Fields, layer: int) -> bool:
    used = fields["use_sliding_window"] and fields["sliding_window"]
    return bool(used) and layer >= int(fields["max_window_layers"])


def _all_but_each_nth(fields: Fields, layer: int) -> bool:
    return bool((layer + 1) % int(fields["sliding_window_pattern"]))


@dataclass(frozen=True, slots=True)
class Family:
    """What an architecture fixes, whatever config.json says.

    `defaults` are the values of fields that a config.json leaves out, where they are not the usual
    ones: those of transformers, which writes only what differs from them.
    """

    defaults: Fields = field(default_factory=dict)
    slides: Callable[[Fields, int], bool] | None = None  # which layers have a sliding window
    activation_field: str = "hidden_act"
    qkv_bias: bool = False  # even without attention_bias
    head_norms: bool = False  # RMSNorm of each query and key head, before the rotation
    output_norms: bool = False  # RMSNorm of what attention and MLP give, before it is added
    norm_offset: float = 0.0  # added to the weight of each RMSNorm
    scaled_embedding: bool = False  # by √hidden_size


GEMMA_DEFAULTS = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
QWEN_DEFAULTS = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

FAMILIES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(defaults={"sliding_window": 4096}, slides=_every_layer),
    "Qwen2ForCausalLM": Family(defaults=QWEN_DEFAULTS, slides=_upper_layers, qkv_bias=True),
    "Qwen3ForCausalLM": Family(
        defaults={**QWEN_DEFAULTS, "head_dim": 128}, slides=_upper_layers, head_norms=True
    ),
    "Gemma2ForCausalLM": Family(
        defaults={
            **GEMMA_DEFAULTS,
            "sliding_window_pattern": 2,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
        slides=_all_but_each_nth,
        activation_field="hidden_activation",
        output_norms=True,
        norm_offset=1.0,
        scaled_embedding=True,
    ),
    "Gemma3ForCausalLM": Family(
        defaults={
            **GEMMA_DEFAULTS,
            "sliding_window_pattern": 6,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
        },
        slides=_all_but_each_nth,
        activation_field="hidden_activation",
        head_norms=True,
        output_norms=True,
        norm_offset=1.0,
        scaled_embedding=True,
    ),
}


def architecture_of(fields: Fields) -> str:
    """Raises UnsupportedModelError unless it is one of FAMILIES."""
    name = (fields.get("architectures") or ["(none)"])[0]
    if name not in FAMILIES:
        raise UnsupportedModelError(
            f"architectures: {name} is not supported; supported: {', '.join(FAMILIES)}"
        )
    return str(name)

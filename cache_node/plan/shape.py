"""A model as far as memory goes: its weights, and what a token leaves behind in its layers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache_node.model.config_fields import UnsupportedModelError, positive, well_typed
from cache_node.model.model_config import ModelConfig
from cache_node.plan.parameters import Parameters, count_parameters

SLIDES_EVERYWHERE = ("MistralForCausalLM", "MixtralForCausalLM", "Phi3ForCausalLM")


@dataclass(frozen=True, slots=True)
class Latent:
    """What multi-head latent attention keeps of a token in a layer (DeepSeek-V2, arXiv 2405.04434):
    one vector for all heads, of which keys and values are made, and one rotated key.
    """

    rank: int
    rope: int
    expanded: int  # elements of the keys and values of all heads, which are not kept

    @property
    def elements(self) -> int:
        return self.rank + self.rope


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """`unserved` says why a node does not load it; None where it does."""

    name: str
    source: str
    windows: tuple[int | None, ...]  # of each layer: tokens that a query sees; None: all
    num_heads: int
    num_kv_heads: int
    head_dim: int
    latent: Latent | None  # None: keys and values of all KV heads
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    context: int  # tokens
    parameters: Parameters
    weight_bits: int | None  # of the checkpoint, where it is quantised
    unserved: str | None

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    @property
    def attention(self) -> str:
        """What the field calls it."""
        if self.latent is not None:
            return "MLA"
        if self.num_kv_heads == self.num_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"


@well_typed()
def shape_of(name: str, source: str, fields: Mapping[str, Any]) -> ModelShape:
    """Of a config.json. Raises UnsupportedModelError for a field that is missing or wrong."""
    if not fields.get("architectures"):
        raise UnsupportedModelError("config.json: architectures must name the model's class")
    served, unserved = _served(fields)
    heads, hidden = positive(fields, "num_attention_heads"), positive(fields, "hidden_size")
    head_dim = served.head_dim if served else int(fields.get("head_dim") or hidden // heads)
    parameters = count_parameters(_all_fields(fields, served), head_dim)
    return ModelShape(
        name=name,
        source=source,
        windows=_windows(fields, served),
        num_heads=heads,
        num_kv_heads=int(fields.get("num_key_value_heads") or heads),
        head_dim=head_dim,
        latent=_latent(fields),
        hidden_size=hidden,
        intermediate_size=positive(fields, "intermediate_size"),
        vocab_size=positive(fields, "vocab_size"),
        context=positive(fields, "max_position_embeddings"),
        parameters=parameters,
        weight_bits=_weight_bits(fields),
        unserved=unserved,
    )


def _served(fields: Mapping[str, Any]) -> tuple[ModelConfig | None, str | None]:
    """As a node reads it, or why it does not."""
    try:
        return ModelConfig.from_json(fields), None
    except UnsupportedModelError as error:
        return None, str(error)


def _all_fields(fields: Mapping[str, Any], served: ModelConfig | None) -> Mapping[str, Any]:
    """With what the architecture's defaults say of the fields that are left out."""
    if served is None:
        return fields
    return {**fields, "tie_word_embeddings": served.tied_embeddings}


def _windows(fields: Mapping[str, Any], served: ModelConfig | None) -> tuple[int | None, ...]:
    if served is not None:
        return tuple(layer.window for layer in served.layers)
    window, context = fields.get("sliding_window"), positive(fields, "max_position_embeddings")
    slides = fields["architectures"][0] in SLIDES_EVERYWHERE and window and window < context
    return (window if slides else None,) * positive(fields, "num_hidden_layers")


def _latent(fields: Mapping[str, Any]) -> Latent | None:
    if not fields.get("kv_lora_rank"):
        return None
    rope, key = positive(fields, "qk_rope_head_dim"), positive(fields, "qk_nope_head_dim")
    heads, value = positive(fields, "num_attention_heads"), positive(fields, "v_head_dim")
    return Latent(positive(fields, "kv_lora_rank"), rope, heads * (rope + key + value))


def _weight_bits(fields: Mapping[str, Any]) -> int | None:
    quantised = fields.get("quantization_config")
    if not quantised:
        return None
    return 8 if quantised.get("quant_method") == "fp8" else int(quantised.get("bits", 8))

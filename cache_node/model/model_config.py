"""What the forward pass needs to know of a checkpoint, read from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_node.model.config_fields import UnsupportedModelError, positive, well_typed
from cache_node.model.damaged import read_json_object
from cache_node.model.family import FAMILIES, Family, architecture_of
from cache_node.model.layer_config import LayerConfig, layer_configs

SUPPORTED_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder: Llama, or one that differs from it in these fields alone.

    Sizes are in elements, `max_positions` in tokens.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: tuple[LayerConfig, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    norm_offset: float  # added to the weight of each RMSNorm
    head_norms: bool  # RMSNorm of each query and key head, before the rotation
    output_norms: bool  # RMSNorm of what attention and MLP give, before it is added
    activation: str  # of the gate
    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    embedding_scale: float
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Of all layers, each once."""
        return tuple({layer.window: None for layer in self.layers})

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelConfig":
        """Raises UnsupportedModelError with the field's name, FileNotFoundError without a
        config.json, DamagedFileError where it is none.
        """
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{directory} has no config.json: not a model directory")
        return cls.from_json(read_json_object(path))

    @classmethod
    @well_typed()
    def from_json(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        architecture = architecture_of(raw)
        family = FAMILIES[architecture]
        fields = {**family.defaults, **raw}
        _refuse(fields)
        heads = positive(fields, "num_attention_heads")
        hidden = positive(fields, "hidden_size")
        head_dim = int(fields.get("head_dim") or hidden // heads)
        attention_bias = bool(fields.get("attention_bias", False))
        return cls(
            architecture=architecture,
            vocab_size=positive(fields, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=positive(fields, "intermediate_size"),
            layers=layer_configs(fields, family),
            num_heads=heads,
            num_kv_heads=_kv_heads(fields, heads),
            head_dim=head_dim,
            max_positions=positive(fields, "max_position_embeddings"),
            rms_norm_eps=float(fields.get("rms_norm_eps", 1e-6)),
            norm_offset=family.norm_offset,
            head_norms=family.head_norms,
            output_norms=family.output_norms,
            activation=_activation(fields, family),
            attention_scale=float(fields.get("query_pre_attn_scalar") or head_dim) ** -0.5,
            attention_softcap=_optional_float(fields, "attn_logit_softcapping"),
            logit_softcap=_optional_float(fields, "final_logit_softcapping"),
            embedding_scale=hidden**0.5 if family.scaled_embedding else 1.0,
            tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias or family.qkv_bias,
            output_bias=attention_bias,
            mlp_bias=bool(fields.get("mlp_bias", False)),
        )


def _refuse(fields: Mapping[str, Any]) -> None:
    if fields.get("quantization_config"):
        raise UnsupportedModelError(
            "quantization_config is not supported; use the unquantised checkpoint"
        )
    if fields.get("use_bidirectional_attention"):
        raise UnsupportedModelError(
            "use_bidirectional_attention is not supported; use a model that generates text"
        )


def _activation(fields: Mapping[str, Any], family: Family) -> str:
    name = fields.get(family.activation_field) or "silu"
    if name not in SUPPORTED_ACTIVATIONS:
        raise UnsupportedModelError(
            f"{family.activation_field} {name!r} is not supported; supported: "
            + ", ".join(SUPPORTED_ACTIVATIONS)
        )
    return str(name)


def _kv_heads(fields: Mapping[str, Any], heads: int) -> int:
    kv_heads = int(fields.get("num_key_value_heads") or heads)
    if heads % kv_heads:
        raise UnsupportedModelError(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    return kv_heads


def _optional_float(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    return None if value is None else float(value)

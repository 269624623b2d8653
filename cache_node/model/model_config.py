"""What the forward pass needs to know of a checkpoint, read from its config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3")


class UnsupportedModelError(ValueError):
    """The checkpoint asks for something that this engine does not compute."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding. The fields after `factor` matter to `llama3` only."""

    theta: float = 10000.0
    rope_type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family. Sizes are in elements, `max_positions` in tokens."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool

    @classmethod
    def from_directory(cls, directory: Path) -> "ModelConfig":
        """Raises UnsupportedModelError with the field's name, FileNotFoundError without a
        config.json.
        """
        path = directory / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{directory} has no config.json: not a model directory")
        return cls.from_json(json.loads(path.read_text(encoding="utf-8")))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        architecture = _architecture(raw)
        _refuse_other_layers(raw, architecture)
        heads = _positive(raw, "num_attention_heads")
        kv_heads = int(raw.get("num_key_value_heads") or heads)
        if heads % kv_heads:
            raise UnsupportedModelError(
                f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
            )
        hidden = _positive(raw, "hidden_size")
        attention_bias = bool(raw.get("attention_bias", False))
        return cls(
            architecture=architecture,
            vocab_size=_positive(raw, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_positive(raw, "intermediate_size"),
            num_layers=_positive(raw, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=int(raw.get("head_dim") or hidden // heads),
            max_positions=_positive(raw, "max_position_embeddings"),
            rms_norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
            rope=_rope(raw),
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
            qkv_bias=attention_bias or architecture == "Qwen2ForCausalLM",
            output_bias=attention_bias,
            mlp_bias=bool(raw.get("mlp_bias", False)),
        )


def _architecture(raw: Mapping[str, Any]) -> str:
    names = raw.get("architectures") or ["(none)"]
    if names[0] not in SUPPORTED_ARCHITECTURES:
        raise UnsupportedModelError(
            f"architecture {names[0]} is not supported; supported: "
            + ", ".join(SUPPORTED_ARCHITECTURES)
        )
    return str(names[0])


def _refuse_other_layers(raw: Mapping[str, Any], architecture: str) -> None:
    activation = raw.get("hidden_act", "silu")
    if activation != "silu":
        raise UnsupportedModelError(f"hidden_act {activation!r} is not supported; only 'silu' is")
    if _slides(raw, architecture):
        raise UnsupportedModelError(
            "sliding_window attention is not supported; use a checkpoint with full attention"
        )
    if raw.get("quantization_config"):
        raise UnsupportedModelError(
            "quantization_config is not supported; use the unquantised checkpoint"
        )


def _slides(raw: Mapping[str, Any], architecture: str) -> bool:
    if "sliding_attention" in (raw.get("layer_types") or ()):
        return True
    window = raw.get("sliding_window")
    used = raw.get("use_sliding_window", architecture != "Qwen2ForCausalLM")
    return bool(used and window and window < _positive(raw, "max_position_embeddings"))


def _rope(raw: Mapping[str, Any]) -> RopeConfig:
    """Both spellings: `rope_parameters`, and the older `rope_theta` with `rope_scaling`."""
    fields = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    rope_type = fields.get("rope_type") or fields.get("type") or "default"
    if rope_type not in SUPPORTED_ROPE_TYPES:
        raise UnsupportedModelError(
            f"rope_type {rope_type!r} is not supported; supported: "
            + ", ".join(SUPPORTED_ROPE_TYPES)
        )
    if fields.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise UnsupportedModelError("partial_rotary_factor is not supported unless it is 1.0")
    original = fields.get("original_max_position_embeddings")
    return RopeConfig(
        theta=float(fields.get("rope_theta") or raw.get("rope_theta") or 10000.0),
        rope_type=rope_type,
        factor=float(fields.get("factor", 1.0)),
        low_freq_factor=float(fields.get("low_freq_factor", 1.0)),
        high_freq_factor=float(fields.get("high_freq_factor", 4.0)),
        original_max_positions=int(original or raw["max_position_embeddings"]),
    )


def _positive(raw: Mapping[str, Any], name: str) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or value <= 0:
        raise UnsupportedModelError(
            f"config.json: {name} must be a positive integer, got {value!r}"
        )
    return value

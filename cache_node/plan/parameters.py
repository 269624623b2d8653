"""How many weights a model has, counted from the fields of its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cache_node.model.config_fields import positive
from cache_node.model.family import FAMILIES, Family

Fields = Mapping[str, Any]
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")  # Mixtral, Qwen3, DeepSeek


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers of weights. Pipeline stages share out layers; the first has `embedding`, the last
    `head`.
    """

    embedding: int
    layers: tuple[int, ...]
    head: int  # the final norm, and the output matrix where it is not the embedding

    @property
    def total(self) -> int:
        return self.embedding + sum(self.layers) + self.head


def count_parameters(fields: Fields, head_dim: int) -> Parameters:
    """Raises UnsupportedModelError with the name of a missing field."""
    hidden = positive(fields, "hidden_size")
    embedding = positive(fields, "vocab_size") * hidden
    family = FAMILIES.get(fields["architectures"][0], Family())
    attention = _latent(fields) if fields.get("kv_lora_rank") else _heads(fields, family, head_dim)
    norms = hidden * (4 if family.output_norms else 2)
    return Parameters(
        embedding=embedding,
        layers=tuple(
            attention + norms + _mlp(fields, layer)
            for layer in range(positive(fields, "num_hidden_layers"))
        ),
        head=hidden + (0 if fields.get("tie_word_embeddings") else embedding),
    )


def _heads(fields: Fields, family: Family, head_dim: int) -> int:
    """Projections to queries, keys and values, and back."""
    hidden, heads = positive(fields, "hidden_size"), positive(fields, "num_attention_heads")
    queries = heads * head_dim
    keys_and_values = 2 * int(fields.get("num_key_value_heads") or heads) * head_dim
    count = hidden * (2 * queries + keys_and_values)
    if fields.get("attention_bias"):
        count += queries + keys_and_values + hidden
    elif family.qkv_bias:
        count += queries + keys_and_values
    head_norms = family.head_norms or fields["architectures"] == ["Qwen3MoeForCausalLM"]
    return count + (2 * head_dim if head_norms else 0)


def _latent(fields: Fields) -> int:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): keys and values are made from
    one short vector, and mostly queries from another.
    """
    hidden, heads = positive(fields, "hidden_size"), positive(fields, "num_attention_heads")
    rank, rope = positive(fields, "kv_lora_rank"), positive(fields, "qk_rope_head_dim")
    nope, values = positive(fields, "qk_nope_head_dim"), positive(fields, "v_head_dim")
    query = heads * (nope + rope)
    short = int(fields.get("q_lora_rank") or 0)
    queries = short * (hidden + 1 + query) if short else hidden * query
    down, up = hidden * (rank + rope) + rank, rank * heads * (nope + values)
    return queries + down + up + heads * values * hidden


def _mlp(fields: Fields, layer: int) -> int:
    hidden, intermediate = positive(fields, "hidden_size"), positive(fields, "intermediate_size")
    experts = next((int(fields[name]) for name in EXPERTS if fields.get(name)), 0)
    if not experts or layer < fields.get("first_k_dense_replace", 0):
        biases = 2 * intermediate + hidden if fields.get("mlp_bias") else 0
        return 3 * hidden * intermediate + biases
    width = int(fields.get("moe_intermediate_size") or intermediate)
    count = experts + int(fields.get("n_shared_experts") or 0)
    gate = experts * hidden + (experts if fields.get("topk_method") == "noaux_tc" else 0)
    return count * 3 * hidden * width + gate

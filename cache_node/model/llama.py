"""The forward pass of a Llama-family decoder over the paged KV pool."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.linalg import vector_norm
from torch.nn.functional import embedding, silu

from cache_node.model.linear import Linear
from cache_node.model.model_config import ModelConfig
from cache_node.model.rope import RopeTable, rotate_
from cache_node.model.weights import Checkpoint
from kernels.attention import AttentionParams, paged_attention
from kernels.attention_plan import AttentionPlan
from kernels.kv_write import kv_write


class LayerWeights(NamedTuple):
    input_norm: torch.Tensor  # [hidden], float32, as the other norms
    qkv: Linear  # the heads of q, then k, then v
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear  # gate, then up
    down: Linear


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A flattened step: the new tokens of all its sequences, one after the other."""

    token_ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [tokens] int64
    kv_index: torch.Tensor  # see kernels.kv_write.kv_write_index
    attention: AttentionPlan
    logit_tokens: torch.Tensor  # [rows] int64: whose logits are wanted


class LlamaModel:
    """Weights in `dtype`; the residual stream, norms and rotary embedding in float32.

    Holds no state between calls: keys and values live in the pool that the caller owns.
    """

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        """Raises ValueError when a tensor is missing or has another shape than `config` says."""
        self.config = config
        self.dtype = dtype
        loader = _Loader(config, checkpoint, dtype)
        self._embedding = loader.embedding()
        self._layers = [loader.layer(i) for i in range(config.num_layers)]
        self._norm = loader.norm("model.norm")
        self._head = Linear(self._embedding if config.tied_embeddings else loader.head())
        self._attention = AttentionParams(scale=config.head_dim**-0.5)
        self._epsilon = torch.tensor(config.rms_norm_eps)
        self._rope = RopeTable(config.rope, config.head_dim, config.max_positions)

    def forward(self, inputs: StepInputs, pool: torch.Tensor) -> torch.Tensor:
        """Writes the new keys and values to `pool`; returns logits [rows, vocab_size], float32."""
        return self.logits(self.hidden(inputs, pool))

    def hidden(self, inputs: StepInputs, pool: torch.Tensor) -> torch.Tensor:
        """As `forward`, without the last step: what `logits` takes, [rows, hidden_size], float32.

        For many rows, whose logits are too large to be made at once.
        """
        config = self.config
        residual = embedding(inputs.token_ids, self._embedding).float()
        cos, sin = self._rope.at(inputs.positions)
        for index, layer in enumerate(self._layers):
            heads = self._project(layer, self._normed(residual, layer.input_norm), cos, sin)
            query, kv = heads[:, : config.num_heads], heads[:, config.num_heads :]
            kv_write(pool, index, inputs.kv_index, kv)
            attended = paged_attention(query, pool, index, inputs.attention, self._attention)
            residual += layer.output(attended.flatten(1))
            residual += self._mlp(layer, self._normed(residual, layer.mlp_norm))
        return residual[inputs.logit_tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [rows, vocab_size], float32, of rows that `hidden` gave."""
        return self._head(self._normed(hidden, self._norm)).float()

    def _project(
        self, layer: LayerWeights, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Query, key and value heads [tokens, heads + 2 · kv_heads, head_dim], q and k rotated."""
        heads = layer.qkv(x).float().view(len(x), -1, self.config.head_dim)
        rotate_(heads[:, : self.config.num_heads + self.config.num_kv_heads], cos, sin)
        return heads.to(self.dtype)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        return layer.down(silu(gate).mul_(up))

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm: weight · x / √(mean(x²) + ε). torch's own walks over x more often."""
        length = vector_norm(x, dim=-1, keepdim=True)
        scale = torch.addcmul(self._epsilon, length, length, value=1.0 / x.shape[-1]).rsqrt_()
        return (x * scale).mul_(weight).to(self.dtype)


class _Loader:
    """Names and shapes of the tensors in a checkpoint, and which of them are fused."""

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._dtype = dtype

    def embedding(self) -> torch.Tensor:
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._checkpoint.tensor("model.embed_tokens.weight", shape, self._dtype)

    def head(self) -> torch.Tensor:
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._checkpoint.tensor("lm_head.weight", shape, self._dtype)

    def norm(self, name: str) -> torch.Tensor:
        shape = (self._config.hidden_size,)
        return self._checkpoint.tensor(f"{name}.weight", shape, torch.float32)

    def layer(self, index: int) -> LayerWeights:
        config, prefix = self._config, f"model.layers.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [(f"{attention}.{n}_proj", s) for n, s in (("q", query), ("k", key), ("v", key))]
        gate_up = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
        return LayerWeights(
            input_norm=self.norm(f"{prefix}.input_layernorm"),
            qkv=self._fused(qkv, hidden, config.qkv_bias),
            output=self._fused([(f"{attention}.o_proj", hidden)], query, config.output_bias),
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm"),
            gate_up=self._fused(gate_up, hidden, config.mlp_bias),
            down=self._fused([(f"{mlp}.down_proj", hidden)], inner, config.mlp_bias),
        )

    def _fused(self, parts: list[tuple[str, int]], inputs: int, has_bias: bool) -> Linear:
        """One linear out of several (name, outputs) that read the same input."""
        weights = [
            self._checkpoint.tensor(f"{name}.weight", (outputs, inputs), self._dtype)
            for name, outputs in parts
        ]
        if not has_bias:
            return Linear(torch.cat(weights))
        biases = [
            self._checkpoint.tensor(f"{name}.bias", (outputs,), self._dtype)
            for name, outputs in parts
        ]
        return Linear(torch.cat(weights), torch.cat(biases))

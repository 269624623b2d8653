"""The forward pass of a decoder over the paged KV pool: Llama, and the families near to it."""

from dataclasses import dataclass

import torch
from torch.linalg import vector_norm
from torch.nn.functional import embedding, gelu, silu

from cache_node.model.layer_weights import LayerWeights, WeightLoader
from cache_node.model.linear import Linear
from cache_node.model.model_config import ModelConfig
from cache_node.model.rope import Rotation, inverse_frequencies, rotate_
from cache_node.model.weights import Checkpoint
from kernels.attention import AttentionParams, paged_attention
from kernels.attention_plan import AttentionPlan
from kernels.kv_write import kv_write


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A flattened step: the new tokens of all its sequences, one after the other."""

    token_ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [tokens] int64
    kv_index: torch.Tensor  # see kernels.kv_write.kv_write_index
    attention: AttentionPlan  # for the model's windows
    logit_tokens: torch.Tensor  # [rows] int64: whose logits are wanted


class LlamaModel:
    """Weights in `dtype`; the residual stream, norms and rotary embedding in float32.

    Holds no state between calls: keys and values live in the pool that the caller owns. What the
    families differ in is in `config`, and in the norms that a layer has or has not.
    """

    def __init__(self, config: ModelConfig, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        """Raises ValueError when a tensor is missing or has another shape than `config` says."""
        self.config = config
        self.dtype = dtype
        loader = WeightLoader(config, checkpoint, dtype)
        self._embedding = loader.embedding()
        self._layers = [loader.layer(i) for i in range(config.num_layers)]
        self._norm = loader.norm("model.norm")
        self._head = Linear(self._embedding if config.tied_embeddings else loader.head())
        self._attention = [
            AttentionParams(config.attention_scale, layer.window, config.attention_softcap)
            for layer in config.layers
        ]
        self._frequencies = {
            layer.rope: inverse_frequencies(layer.rope, config.head_dim) for layer in config.layers
        }
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).float()
        self._epsilon = torch.tensor(config.rms_norm_eps)

    def forward(self, inputs: StepInputs, pool: torch.Tensor) -> torch.Tensor:
        """Writes the new keys and values to `pool`; returns logits [rows, vocab_size], float32."""
        return self.logits(self.hidden(inputs, pool))

    def hidden(self, inputs: StepInputs, pool: torch.Tensor) -> torch.Tensor:
        """As `forward`, without the last step: what `logits` takes, [rows, hidden_size], float32.

        For many rows, whose logits are too large to be made at once.
        """
        num_heads = self.config.num_heads
        residual = embedding(inputs.token_ids, self._embedding).float().mul_(self._embedding_scale)
        rotations = {
            rope: Rotation.at(inputs.positions, frequencies)
            for rope, frequencies in self._frequencies.items()
        }
        for index, (kind, layer) in enumerate(zip(self.config.layers, self._layers, strict=True)):
            x = self._normed(residual, layer.input_norm)
            heads = self._project(layer, x, rotations[kind.rope])
            query, kv = heads[:, :num_heads], heads[:, num_heads:]
            kv_write(pool, index, inputs.kv_index, kv)
            attended = paged_attention(query, pool, index, inputs.attention, self._attention[index])
            self._add(residual, layer.output(attended.flatten(1)), layer.output_norm)
            x = self._normed(residual, layer.mlp_norm)
            self._add(residual, self._mlp(layer, x), layer.down_norm)
        return residual[inputs.logit_tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [rows, vocab_size], float32, of rows that `hidden` gave."""
        logits = self._head(self._normed(hidden, self._norm)).float()
        cap = self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _project(self, layer: LayerWeights, x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
        """Query, key and value heads [tokens, heads + 2 · kv_heads, head_dim], q and k rotated."""
        heads = layer.qkv(x).float().view(len(x), -1, self.config.head_dim)
        rotated = heads[:, : self.config.num_heads + self.config.num_kv_heads]
        if layer.head_norm is not None:
            rotated.mul_(self._scale(rotated)).mul_(layer.head_norm)
        rotate_(rotated, rotation)
        return heads.to(self.dtype)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(x).chunk(2, dim=-1)
        return layer.down(self._activate(gate).mul_(up))

    def _activate(self, gate: torch.Tensor) -> torch.Tensor:
        if self.config.activation == "silu":
            return silu(gate)
        return gelu(gate, approximate="tanh")

    def _add(self, residual: torch.Tensor, output: torch.Tensor, norm: torch.Tensor | None) -> None:
        """Adds a layer's output, normed where the family does so, to `residual` in place."""
        if norm is None:
            residual += output
        else:
            x = output.float()
            residual.addcmul_(x * self._scale(x), norm)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm: weight · x / √(mean(x²) + ε), in the weights' dtype."""
        return (x * self._scale(x)).mul_(weight).to(self.dtype)

    def _scale(self, x: torch.Tensor) -> torch.Tensor:
        """1 / √(mean(x²) + ε) over the last dimension. torch's own norm walks over x more often."""
        length = vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._epsilon, length, length, value=1.0 / x.shape[-1]).rsqrt_()

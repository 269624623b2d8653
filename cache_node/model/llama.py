"""The forward pass of a decoder over the paged KV pool: Llama, and the families near to it."""

from dataclasses import dataclass

import torch

from cache_node.model.layer_weights import WeightLoader
from cache_node.model.model_config import ModelConfig
from cache_node.model.rope import Rotation, inverse_frequencies
from cache_node.model.weights import Checkpoint
from kernels.attention import AttentionParams
from kernels.linear import Linear, make_linear
from kernels.norm import inverse_rms, rms_norm
from kernels.step import StepKernels


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A flattened step: the new tokens of all its sequences, one after the other."""

    token_ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [tokens] int64
    kernels: StepKernels  # over the pool, planned for these tokens and the model's windows
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
        self._embedding = make_linear(loader.embedding())
        self._layers = [loader.layer(i) for i in range(config.num_layers)]
        self._norm = loader.norm("model.norm")
        # Tied, both are one copy in memory: rows are read out of the head's layout.
        self._head = self._embedding if config.tied_embeddings else make_linear(loader.head())
        self._attention = [
            AttentionParams(config.attention_scale, layer.window, config.attention_softcap)
            for layer in config.layers
        ]
        self._frequencies = {
            layer.rope: inverse_frequencies(layer.rope, config.head_dim) for layer in config.layers
        }
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).float()

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Writes the new keys and values; returns logits [rows, vocab_size], float32."""
        return self.logits(self.hidden(inputs))

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """As `forward`, without the last step: what `logits` takes, [rows, hidden_size], float32.

        For many rows, whose logits are too large to be made at once.
        """
        config, kernels = self.config, inputs.kernels
        residual = self._embedding.rows(inputs.token_ids).mul_(self._embedding_scale)
        rotations = {
            rope: Rotation.at(inputs.positions, frequencies)
            for rope, frequencies in self._frequencies.items()
        }
        for index, (kind, layer) in enumerate(zip(config.layers, self._layers, strict=True)):
            qkv = layer.qkv.wide(self._normed(residual, layer.input_norm))
            query = kernels.place(
                index, qkv, *rotations[kind.rope], layer.head_norm, config.rms_norm_eps
            )
            attended = kernels.attend(index, query, self._attention[index])
            self._add(residual, layer.output, attended.flatten(1), layer.output_norm)
            x = self._normed(residual, layer.mlp_norm)
            gated = layer.gate_up.gated(x, config.activation)
            self._add(residual, layer.down, gated, layer.down_norm)
        return residual[inputs.logit_tokens]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [rows, vocab_size], float32, of rows that `hidden` gave."""
        logits = self._head.wide(self._normed(hidden, self._norm))
        cap = self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _add(
        self, residual: torch.Tensor, linear: Linear, x: torch.Tensor, norm: torch.Tensor | None
    ) -> None:
        """Adds what `linear` makes of x, normed where the family does so, to `residual`."""
        if norm is None:
            linear.add_to(residual, x)
        else:
            output = linear.wide(x)
            residual.addcmul_(output * inverse_rms(output, self.config.rms_norm_eps), norm)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps, self.dtype)

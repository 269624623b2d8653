"""The forward pass of a decoder over the paged KV pool: Llama, and the families near to it."""

from dataclasses import dataclass

import torch

from cache_node.model.layer_weights import WeightLoader
from cache_node.model.model_config import ModelConfig
from cache_node.model.rope import Rotation, inverse_frequencies
from cache_node.model.weights import Checkpoint
from kernels.decoder import make_decoder
from kernels.decoder_layer import DecoderParams
from kernels.linear import make_linear
from kernels.norm import rms_norm
from kernels.step import StepKernels

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class StepInputs:
    """A flattened step: the new tokens of all its sequences, one after the other. On the model's
    device.
    """

    token_ids: torch.Tensor  # [tokens] int64
    positions: torch.Tensor  # [tokens] int64
    kernels: StepKernels  # over the pool, planned for these tokens and the model's windows
    logit_tokens: torch.Tensor  # [rows] int64: whose logits are wanted


class LlamaModel:
    """Weights in `dtype`; the residual stream, norms and rotary embedding in float32.

    Holds no state between calls: keys and values live in the pool that the caller owns. What the
    families differ in is in `config`, and in the norms that a layer has or has not.
    """

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        """Raises ValueError when a tensor is missing or has another shape than `config` says."""
        self.config = config
        self.dtype = dtype
        self.device = device
        loader = WeightLoader(config, checkpoint, dtype, device)
        self._embedding = make_linear(loader.embedding())
        ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
        self._frequencies = [
            inverse_frequencies(rope, config.head_dim).to(device) for rope in ropes
        ]
        layers = [loader.layer(i, ropes.index(layer.rope)) for i, layer in enumerate(config.layers)]
        params = DecoderParams(config.rms_norm_eps, config.activation, dtype)
        self._decoder = make_decoder(layers, params)
        self._norm = loader.norm("model.norm")
        # Tied, both are one copy in memory: rows are read out of the head's layout.
        self._head = self._embedding if config.tied_embeddings else make_linear(loader.head())
        self.weight_bytes = loader.loaded_bytes  # of the matrices; norms are nothing beside them
        self._embedding_scale = torch.tensor(config.embedding_scale, dtype=dtype).float().to(device)

    def forward(self, inputs: StepInputs) -> torch.Tensor:
        """Writes the new keys and values; returns logits [rows, vocab_size], float32."""
        return self.logits(self.hidden(inputs))

    def hidden(self, inputs: StepInputs) -> torch.Tensor:
        """As `forward`, without the last step: what `logits` takes, [rows, hidden_size], float32.

        For many rows, whose logits are too large to be made at once.
        """
        residual = self._embedding.rows(inputs.token_ids).mul_(self._embedding_scale)
        rotations = [Rotation.at(inputs.positions, each) for each in self._frequencies]
        return self._decoder.run(residual, rotations, inputs.kernels, inputs.logit_tokens)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The logits [rows, vocab_size], float32, of rows that `hidden` gave."""
        logits = self._head.wide(self._normed(hidden, self._norm))
        cap = self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps, self.dtype)

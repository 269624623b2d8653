"""The weights of a decoder as the forward pass wants them: by layer, some of them fused."""

import torch

from cache_node.model.model_config import ModelConfig
from cache_node.model.weights import Checkpoint
from kernels.attention import AttentionParams
from kernels.decoder_layer import DecoderLayer
from kernels.linear import Linear, make_linear


class WeightLoader:
    """Names and shapes of the tensors in a checkpoint, and which of them are fused.

    Every method raises ValueError when a tensor is missing or has another shape.
    """

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self.loaded_bytes = 0

    def embedding(self) -> torch.Tensor:
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._tensor("model.embed_tokens.weight", shape)

    def head(self) -> torch.Tensor:
        shape = (self._config.vocab_size, self._config.hidden_size)
        return self._tensor("lm_head.weight", shape)

    def norm(self, name: str, size: int | None = None) -> torch.Tensor:
        """Of `size` elements, hidden_size if None."""
        shape = (size or self._config.hidden_size,)
        weight = self._checkpoint.tensor(f"{name}.weight", shape, torch.float32)
        return (weight + self._config.norm_offset).to(self._device)

    def layer(self, index: int, rope: int) -> DecoderLayer:
        """The `index`th, which takes rotation `rope`."""
        config, prefix = self._config, f"model.layers.{index}"
        hidden, inner = config.hidden_size, config.intermediate_size
        query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        qkv = [(f"{attention}.{n}_proj", s) for n, s in (("q", query), ("k", key), ("v", key))]
        gate_up = [(f"{mlp}.gate_proj", inner), (f"{mlp}.up_proj", inner)]
        output_norm, mlp_norm, down_norm = self._norms(prefix)
        return DecoderLayer(
            input_norm=self.norm(f"{prefix}.input_layernorm"),
            qkv=self._fused(qkv, hidden, config.qkv_bias),
            head_norm=self._head_norm(attention) if config.head_norms else None,
            attention=AttentionParams(
                config.attention_scale, config.layers[index].window, config.attention_softcap
            ),
            rope=rope,
            output=self._fused([(f"{attention}.o_proj", hidden)], query, config.output_bias),
            output_norm=output_norm,
            mlp_norm=mlp_norm,
            gate_up=self._fused(gate_up, hidden, config.mlp_bias, gated=True),
            down=self._fused([(f"{mlp}.down_proj", hidden)], inner, config.mlp_bias),
            down_norm=down_norm,
        )

    def _norms(self, prefix: str) -> tuple[torch.Tensor | None, torch.Tensor, torch.Tensor | None]:
        """Of the attention's output, the MLP's input and its output. The first name means the
        MLP's input in Llama, the attention's output in Gemma.
        """
        after_attention = self.norm(f"{prefix}.post_attention_layernorm")
        if not self._config.output_norms:
            return None, after_attention, None
        before, after = (self.norm(f"{prefix}.{n}_feedforward_layernorm") for n in ("pre", "post"))
        return after_attention, before, after

    def _head_norm(self, prefix: str) -> torch.Tensor:
        config = self._config
        query = self.norm(f"{prefix}.q_norm", config.head_dim)
        key = self.norm(f"{prefix}.k_norm", config.head_dim)
        return torch.stack([query] * config.num_heads + [key] * config.num_kv_heads)

    def _fused(
        self, parts: list[tuple[str, int]], inputs: int, has_bias: bool, gated: bool = False
    ) -> Linear:
        """One linear out of several (name, outputs) that read the same input."""
        weights = [self._tensor(f"{name}.weight", (outputs, inputs)) for name, outputs in parts]
        if not has_bias:
            return make_linear(torch.cat(weights), gated=gated)
        biases = [self._tensor(f"{name}.bias", (outputs,)) for name, outputs in parts]
        return make_linear(torch.cat(weights), torch.cat(biases), gated=gated)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        weight = self._checkpoint.tensor(name, shape, self._dtype).to(self._device)
        self.loaded_bytes += weight.nbytes
        return weight

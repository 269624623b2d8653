"""Scales and centres of a quantised KV cache: fixed before the first block is written, and part of
the block keys.
"""

from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch

from cache_node.model.llama import LlamaModel, StepInputs
from cache_node.model.model_config import ModelConfig
from cache_node.model.weights import Checkpoint
from kernels.attention_plan import AttentionRow
from kernels.kv_layout import KvLayout
from kernels.kv_pool import FP8_MAX, KvPool
from kernels.step import plan_step
from kvmesh.tokenizer import Tokenizer

HEADROOM = 2.0
"""A text of another kind may have larger keys than the sample; a factor costs fp8 no precision."""
SAMPLE_TOKENS = 512
BLOCK_SIZE = 16
SAMPLE = (
    "A ship's log of 14 March: wind north-west, 7 knots; the keeper (J. Morrow) wrote \"lamp lit "
    'at 18:42". def area(r): return 3.14159 * r ** 2  # in m². Die Brücke ist gesperrt; le pont '
    "est fermé; 桥已关闭。 Prices rose by 2.5 % to $1,024.00 in 2019 – why? Because demand grew. "
    "1. Boil water. 2. Add salt. 3. Wait. The quick brown fox jumps over the lazy dog.\n"
)
"""Prose, code, numbers and languages in turn."""


class KvScales(NamedTuple):
    """What is fixed before the first block is written; see `KvPool`."""

    heads: torch.Tensor | None = None  # [layers, 2, kv_heads], for fp8
    centres: torch.Tensor | None = None  # [layers, 2, kv_heads, head_dim], for all

    @property
    def fingerprint(self) -> bytes:
        """Nodes with others read other numbers out of the same bytes."""
        parts = [part.cpu().numpy().tobytes() for part in self if part is not None]
        return blake2b(b"".join(parts), digest_size=16).digest() if parts else b""


def kv_scales(
    directory: Path, model: LlamaModel, kv_cache_dtype: str, sample: Path | None
) -> KvScales:
    """Keys and values are centred by their means over the start of the text in `sample`, or over a
    built-in one, and fp8 is scaled by the largest magnitude of each head. A checkpoint that has
    scales for fp8 was made for them, and for keys and values as they are.

    Raises ValueError when `sample` cannot be read or is empty.
    """
    if kv_cache_dtype == "auto":
        return KvScales()
    heads = _from_checkpoint(Checkpoint(directory), model.config)
    if heads is not None:
        return KvScales(heads if kv_cache_dtype == "fp8" else None)
    tokens = Tokenizer.from_directory(directory).encode(_text(sample), True)[:SAMPLE_TOKENS]
    if len(tokens) < 2:
        raise ValueError(f"kv_scale_sample: {sample} holds no text")
    kv = _keys_and_values(model, tokens)
    # The first token's keys are like no other's (Xiao et al., arXiv:2309.17453).
    centres = kv[:, :, :, 1:].mean(dim=3)
    if model.config.attention_softcap is not None:
        centres[:, 0] = 0.0  # a capped score is not moved by as much for every key
    if kv_cache_dtype != "fp8":
        return KvScales(None, centres)
    largest = (kv - centres.unsqueeze(3)).abs().amax(dim=(3, 4))
    return KvScales(largest.clamp(min=1e-3) * (HEADROOM / FP8_MAX), centres)


def _from_checkpoint(checkpoint: Checkpoint, config: ModelConfig) -> torch.Tensor | None:
    """k_scale and v_scale of every layer, a number or one for each head, as vLLM reads them."""
    names = [
        f"model.layers.{layer}.self_attn.{part}_scale"
        for layer in range(config.num_layers)
        for part in ("k", "v")
    ]
    if not all(name in checkpoint for name in names):
        return None
    scales = [
        checkpoint.some_tensor(name).float().flatten().expand(config.num_kv_heads) for name in names
    ]
    return torch.stack(scales).view(config.num_layers, 2, config.num_kv_heads)


def _text(sample: Path | None) -> str:
    if sample is None:
        return SAMPLE
    try:
        return sample.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"kv_scale_sample: {sample} cannot be read as text: {error}") from error


@torch.inference_mode()
def _keys_and_values(model: LlamaModel, tokens: list[int]) -> torch.Tensor:
    """[layers, 2, kv_heads, tokens, head_dim], float32."""
    config = model.config
    dtype = "float32" if model.dtype == torch.float32 else "bfloat16"
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, dtype)
    blocks = layout.blocks_for(len(tokens))
    size = (blocks, layout.bytes_per_block)
    pool = KvPool(layout, torch.zeros(size, dtype=torch.uint8, device=model.device))
    row = AttentionRow(0, len(tokens), range(blocks))
    model.hidden(
        StepInputs(
            token_ids=torch.tensor(tokens, device=model.device),
            positions=torch.arange(len(tokens), device=model.device),
            kernels=plan_step(pool, config.num_heads, [row], model.dtype, config.windows),
            logit_tokens=torch.tensor([len(tokens) - 1], device=model.device),
        )
    )
    kv = pool.elements.float().cpu().permute(1, 2, 3, 0, 4, 5).flatten(3, 4)
    return kv[:, :, :, : len(tokens)]

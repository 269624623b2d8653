"""The scales of an fp8 KV cache: fixed before the first block is written, part of its keys."""

from pathlib import Path

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


def head_scales(directory: Path, model: LlamaModel, sample: Path | None) -> torch.Tensor:
    """float32 [layers, 2, kv_heads], of keys and values: the checkpoint's own, else by the largest
    magnitude of each head over the start of the text in `sample`, or over a built-in one.

    Raises ValueError when `sample` cannot be read or is empty.
    """
    found = _from_checkpoint(Checkpoint(directory), model.config)
    if found is not None:
        return found
    tokens = Tokenizer.from_directory(directory).encode(_text(sample), True)[:SAMPLE_TOKENS]
    if not tokens:
        raise ValueError(f"kv_scale_sample: {sample} holds no text")
    return _largest(model, tokens) * (HEADROOM / FP8_MAX)


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
def _largest(model: LlamaModel, tokens: list[int]) -> torch.Tensor:
    """The largest magnitude of each head's keys and values, at least a little above zero."""
    config = model.config
    dtype = "float32" if model.dtype == torch.float32 else "bfloat16"
    layout = KvLayout(config.num_layers, config.num_kv_heads, config.head_dim, BLOCK_SIZE, dtype)
    blocks = layout.blocks_for(len(tokens))
    pool = KvPool.zeros(layout, blocks)
    row = AttentionRow(0, len(tokens), range(blocks))
    model.hidden(
        StepInputs(
            token_ids=torch.tensor(tokens),
            positions=torch.arange(len(tokens)),
            kernels=plan_step(pool, config.num_heads, [row], model.dtype, config.windows),
            logit_tokens=torch.tensor([len(tokens) - 1]),
        )
    )
    found: torch.Tensor = pool.elements.float().abs().amax(dim=(0, 4, 5)).clamp(min=1e-3)
    return found

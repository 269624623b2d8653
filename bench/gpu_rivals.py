"""Attention of others on a GPU, for the same keys and values: torch, and what is installed.

Each gets its keys and values in the layout that it likes, once, outside of what is timed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.kv_pool import KvPool

FLASH_PAGE = 256  # flash-attn's paged decode takes multiples of it
WORKSPACE = 128 << 20

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class DecodeCase:
    query: torch.Tensor  # [batch, heads, head_dim]
    pool: KvPool  # bfloat16, one layer
    tables: torch.Tensor  # [batch, blocks], all of one length
    lengths: torch.Tensor  # [batch]
    context: int


def decode_rivals(case: DecodeCase) -> dict[str, Call | str]:
    """By name: what to time, or why there is nothing."""
    alone = case.query.unsqueeze(1)
    made: dict[str, Call | str] = {"torch": torch_attention(alone, case.pool, case.tables)}
    for name, module, make in (
        ("FlashInfer", "flashinfer", _flashinfer),
        ("flash-attn", "flash_attn", _flash_attn),
        ("vLLM", "vllm", _vllm),
    ):
        if find_spec(module) is None:
            continue
        try:
            made[name] = make(case)
        except Exception as error:  # noqa: BLE001  another release may be called otherwise
            made[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    return made


def torch_attention(query: torch.Tensor, pool: KvPool, tables: torch.Tensor) -> Call:
    """Fused attention of `query` [batch, tokens, heads, head_dim] over contiguous keys and values:
    what a cache without pages would cost. Causal where there are several tokens.
    """
    keys, values = contiguous_kv(pool, tables)
    heads, tokens = query.transpose(1, 2), query.shape[1]
    mask = None
    if 1 < tokens < keys.shape[2]:
        mask = torch.ones((tokens, keys.shape[2]), dtype=torch.bool, device=query.device)
        mask = mask.tril(keys.shape[2] - tokens)
    causal = mask is None and tokens > 1
    return lambda: scaled_dot_product_attention(
        heads, keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True
    )


def contiguous_kv(pool: KvPool, tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of layer 0, each [batch, kv_heads, tokens, head_dim]."""
    found = pool.elements[tables.long(), 0]  # [batch, blocks, 2, kv_heads, slot, element]
    keys, values = found.permute(2, 0, 3, 1, 4, 5).flatten(3, 4)
    return keys, values


def _flashinfer(case: DecodeCase) -> Call:
    import flashinfer

    layout, (batch, width) = case.pool.layout, case.tables.shape
    device = case.query.device
    workspace = torch.empty(WORKSPACE, dtype=torch.uint8, device=device)
    wrapper: Any = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "HND", use_tensor_cores=True
    )
    wrapper.plan(
        torch.arange(batch + 1, dtype=torch.int32, device=device) * width,
        case.tables.flatten().int(),
        torch.full((batch,), layout.block_size, dtype=torch.int32, device=device),
        case.query.shape[1],
        layout.num_kv_heads,
        layout.head_dim,
        layout.block_size,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    pages = case.pool.elements[:, 0].contiguous()  # [pages, 2, kv_heads, slot, element]
    return lambda: wrapper.run(case.query, pages)


def _flash_attn(case: DecodeCase) -> Call:
    from flash_attn import flash_attn_with_kvcache

    keys, values, tables = _large_pages(case)
    return lambda: flash_attn_with_kvcache(
        case.query[:, None], keys, values, cache_seqlens=case.lengths, block_table=tables
    )


def _vllm(case: DecodeCase) -> Call:
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    # [pages, slot, kv_heads, element]
    keys, values = case.pool.elements[:, 0].permute(1, 0, 3, 2, 4).contiguous()
    starts = torch.arange(len(case.query) + 1, dtype=torch.int32, device=case.query.device)
    return lambda: flash_attn_varlen_func(
        q=case.query,
        k=keys,
        v=values,
        max_seqlen_q=1,
        cu_seqlens_q=starts,
        max_seqlen_k=case.context,
        seqused_k=case.lengths,
        block_table=case.tables,
    )


def _large_pages(case: DecodeCase) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values [pages, FLASH_PAGE, kv_heads, head_dim], and tables of these pages."""
    pages = [
        part.transpose(1, 2).reshape(-1, FLASH_PAGE, *part.shape[1::2])
        for part in contiguous_kv(case.pool, case.tables)
    ]
    batch = len(case.query)
    order = torch.arange(len(pages[0]), dtype=torch.int32, device=case.query.device)
    return pages[0], pages[1], order.view(batch, -1)

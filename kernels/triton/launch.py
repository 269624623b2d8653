"""What all launches of attention ask of their arguments."""

import torch

from kernels.kv_pool import KvPool


def stages(kv_dtype: str) -> int:
    """Of the loop over tiles. With two, keys and values of one byte wait in registers, some of
    which the compiler moves to memory on sm_90 and 100; with three they wait in shared memory. No
    card has timed it.
    """
    return 3 if kv_dtype in ("fp8", "int8") else 2


def checked(
    query: torch.Tensor,
    pool: KvPool,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    out: torch.Tensor | None,
    tails: torch.Tensor | None,
) -> torch.Tensor:
    """`out`, or one of its shape; see `decode_attention` and `prefill_attention`."""
    layout = pool.layout
    assert query.shape[2] == layout.head_dim, (query.shape, layout.head_dim)
    assert query.shape[1] % layout.num_kv_heads == 0, (query.shape, layout.num_kv_heads)
    assert query[:1].is_contiguous(), "the heads of a token are one run"
    assert len(tables) == len(lengths)
    assert tables.stride(1) == 1, "a table is one run"
    assert (tails is None) == (pool.int4 is None), "rows of an int4 pool have tails"
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    assert out.is_contiguous()
    return out

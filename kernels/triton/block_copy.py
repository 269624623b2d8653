"""Moves whole blocks, as bytes: inside a pool, and between a pool and a contiguous staging buffer
that a swap or a transfer reads or fills. The reference is indexing, `target[j] = source[i]`.
"""

import torch
import triton
import triton.language as tl

WORDS = 2048  # of 8 bytes: what one program moves


def copy_blocks(raw: torch.Tensor, copies: torch.Tensor) -> None:
    """Copies raw[source] to raw[destination] for each column of `copies`.

    `raw` is uint8 [blocks, bytes_per_block], bytes_per_block a multiple of 8; `copies` int32 or
    int64 [2, count], on its device. All at once, in no order: no destination may be listed twice,
    or be a source as well.
    """
    assert copies.shape[0] == 2, copies.shape
    _move(raw, copies[0], raw, copies[1], copies.shape[1])


def gather_blocks(raw: torch.Tensor, blocks: torch.Tensor, staging: torch.Tensor) -> None:
    """Copies raw[blocks[i]] to staging[i], uint8 [count, bytes_per_block]; see `copy_blocks`."""
    _move(raw, blocks, staging, None, len(blocks))


def scatter_blocks(staging: torch.Tensor, blocks: torch.Tensor, raw: torch.Tensor) -> None:
    """Copies staging[i] to raw[blocks[i]], each block once: what `gather_blocks` took apart."""
    _move(staging, None, raw, blocks, len(blocks))


def _move(
    source: torch.Tensor,
    sources: torch.Tensor | None,
    target: torch.Tensor,
    targets: torch.Tensor | None,
    count: int,
) -> None:
    size = source.shape[1]
    assert source.dtype == target.dtype == torch.uint8
    assert source.is_contiguous()
    assert target.is_contiguous()
    assert target.shape[1] == size
    assert size % 8 == 0, "blocks are moved in words of 8 bytes"
    assert sources is not None or len(source) >= count
    assert targets is not None or len(target) >= count
    if count == 0:
        return
    words = size // 8
    move_kernel[(count, triton.cdiv(words, WORDS))](
        source.view(torch.int64),
        sources,
        target.view(torch.int64),
        targets,
        words=words,
        words_at_once=WORDS,
        num_warps=8,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize_on_alignment=["sources", "targets"])
def move_kernel(
    source: tl.tensor,
    sources: tl.tensor,
    target: tl.tensor,
    targets: tl.tensor,
    words: tl.constexpr,
    words_at_once: tl.constexpr,
) -> None:
    """A program copies `words_at_once` words of one block. Without a list, block i is the i-th."""
    index = tl.program_id(0).to(tl.int64)
    from_block, to_block = index, index
    if sources is not None:
        from_block = tl.load(sources + index).to(tl.int64)
    if targets is not None:
        to_block = tl.load(targets + index).to(tl.int64)
    word = tl.program_id(1) * words_at_once + tl.arange(0, words_at_once)
    found = tl.load(source + from_block * words + word, mask=word < words)
    tl.store(target + to_block * words + word, found, mask=word < words)

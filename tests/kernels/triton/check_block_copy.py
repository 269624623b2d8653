"""Moves of whole blocks in the interpreter: see test_interpreter.py."""

import pytest
import torch

from kernels.triton.block_copy import WORDS, copy_blocks, gather_blocks, scatter_blocks

# Of a small block, of one program, of one more word, of several programs and a part.
SIZES = [64, 8 * WORDS, 8 * WORDS + 8, 8 * 3 * WORDS + 1000]
GUARD, BLOCKS = 1024, 12


def drawn(blocks, size, generator):
    return torch.randint(0, 256, (blocks, size), dtype=torch.uint8, generator=generator)


def between_guards(blocks):
    """(a contiguous copy, what checks that nothing around it was written)."""
    buffer = torch.full((blocks.numel() + 2 * GUARD,), 7, dtype=torch.uint8)
    inner = buffer[GUARD:-GUARD].view(blocks.shape)
    inner.copy_(blocks)

    def check():
        assert (buffer[:GUARD] == 7).all(), "wrote before the blocks"
        assert (buffer[-GUARD:] == 7).all(), "wrote behind the blocks"

    return inner, check


@pytest.mark.parametrize("size", SIZES)
def test_copies_inside_a_pool(size, generator):
    before = drawn(BLOCKS, size, generator)
    pool, check = between_guards(before)
    order = torch.randperm(BLOCKS, generator=generator)
    sources, targets = order[[0, 1, 1, 2, BLOCKS - 1]], order[3:8]  # one source twice
    copy_blocks(pool, torch.stack((sources, targets)))
    expected = before.clone()
    expected[targets] = before[sources]
    assert torch.equal(pool, expected)
    check()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_gather_and_a_scatter_bring_blocks_elsewhere(size, dtype, generator):
    pool = drawn(BLOCKS, size, generator)
    blocks = torch.randperm(BLOCKS, generator=generator)[:5].to(dtype)
    staging, check = between_guards(torch.zeros((5, size), dtype=torch.uint8))
    gather_blocks(pool, blocks, staging)
    assert torch.equal(staging, pool[blocks.long()])
    check()
    before = drawn(BLOCKS, size, generator)
    other, check = between_guards(before)
    places = torch.randperm(BLOCKS, generator=generator)[:5].to(dtype)
    scatter_blocks(staging, places, other)
    expected = before.clone()
    expected[places.long()] = staging
    assert torch.equal(other, expected)
    check()


def test_nothing_to_move_is_no_launch():
    pool = torch.zeros((2, 64), dtype=torch.uint8)
    copy_blocks(pool, torch.zeros((2, 0), dtype=torch.int64))
    gather_blocks(pool, torch.zeros(0, dtype=torch.int64), pool[:0])

"""Every Triton kernel on a card, for the dtypes and shapes that the interpreter checks: inputs are
drawn and references computed on the CPU.
"""

import pytest
import torch

pytest.importorskip("triton", reason="gpu: triton is not installed")

from kernels.attention import AttentionParams
from kernels.kv_pool import KvPool
from kernels.torch_step import TorchStep
from kernels.triton.block_copy import copy_blocks, gather_blocks, scatter_blocks
from kernels.triton.decode import decode_attention
from kernels.triton.kv_write import write_kv
from kernels.triton.prefill import prefill_attention
from kernels.triton.step import TritonStep
from kernels.triton.step_arrays import StepArrays
from tests.kernels.triton import (
    check_block_copy,
    check_decode,
    check_kv_write,
    check_prefill,
    check_step,
)
from tests.kernels.triton.fixtures import (
    LAYER,
    POISON,
    empty_pool,
    make_pool,
    make_rows,
    open_rows,
    padded_tables,
    poison_unseen,
    reference,
    tails_of,
)


def named(case):
    return "-".join(map(str, case))


def on(card, tensor):
    return None if tensor is None else tensor.to(card)


def moved(pool: KvPool, card: torch.device) -> KvPool:
    """The same pool on the card."""
    tails = None if pool.int4 is None else pool.int4.tails
    given = (on(card, part) for part in (pool.head_scales, tails, pool.centres))
    there = KvPool(pool.layout, pool.raw.to(card), *given)
    if pool.elements.dtype == torch.float16:
        there.elements = there.elements.view(torch.float16)
    return there


@pytest.mark.parametrize("case", check_decode.CASES, ids=named)
def test_decode_is_the_reference_and_reads_no_slot_that_is_not_seen(case, card, generator):
    kv_dtype, dtype, kv_heads, group, head_dim, block_size, splits, window, cap = case
    lengths = check_decode.drawn_lengths(generator, block_size)
    rows = make_rows([(n - 1, n) for n in lengths], block_size, generator)
    rows = open_rows(rows, block_size, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    shape = (blocks, kv_heads, block_size, head_dim)
    pool = make_pool(*shape, kv_dtype, generator, len(rows), dtype)
    wide = torch.randn((len(rows), kv_heads * group + 2, head_dim), generator=generator).to(dtype)
    query = wide[:, : kv_heads * group]
    params = AttentionParams(head_dim**-0.5, window, cap)
    expected = reference(query, pool, rows, params)
    poison_unseen(pool, rows, window)
    found = decode_attention(
        wide.to(card)[:, : kv_heads * group],
        moved(pool, card),
        LAYER,
        padded_tables(rows).to(card),
        torch.tensor(lengths, dtype=torch.int32, device=card),
        params,
        splits,
        tails=on(card, tails_of(rows, pool)),
    )
    tolerance = check_decode.TOLERANCE[dtype]
    torch.testing.assert_close(found.float().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", check_prefill.CASES, ids=named)
def test_a_mixed_batch_is_the_reference_and_reads_no_slot_that_is_not_seen(case, card, generator):
    kv_dtype, dtype, kv_heads, group, head_dim, block_size, window, cap = case
    spans = check_prefill.drawn_spans(generator)
    rows = make_rows(spans, block_size, generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    if kv_dtype.startswith("int4"):
        rows = open_rows(rows, block_size, generator)
    shape = (blocks, kv_heads, block_size, head_dim)
    pool = make_pool(*shape, kv_dtype, generator, len(rows), dtype)
    arrays = StepArrays.of(rows, block_size)
    wide = torch.randn((len(arrays.positions), kv_heads * group + 2, head_dim), generator=generator)
    wide = wide.to(dtype)
    params = AttentionParams(head_dim**-0.5, window, cap)
    expected = reference(wide[:, : kv_heads * group], pool, rows, params)
    poison_unseen(pool, rows, window)
    found = prefill_attention(
        wide.to(card)[:, : kv_heads * group],
        moved(pool, card),
        LAYER,
        torch.from_numpy(arrays.starts).to(card),
        padded_tables(rows).to(card),
        torch.from_numpy(arrays.lengths).to(card),
        params,
        tails=on(card, tails_of(rows, pool)),
    )
    tolerance = check_prefill.TOLERANCE[dtype]
    torch.testing.assert_close(found.float().cpu(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", check_kv_write.CASES, ids=named)
def test_every_byte_that_a_write_leaves_is_the_reference(case, card, generator):
    kv_dtype, dtype, kv_heads, head_dim, block_size, tokens = case
    blocks = 2 + tokens // block_size
    expected = empty_pool(blocks, kv_heads, block_size, head_dim, kv_dtype, generator)
    expected.raw.fill_(POISON)
    found = moved(expected, card)
    chosen = torch.randperm(blocks * block_size, generator=generator)[:tokens]
    slots = torch.stack((chosen // block_size, chosen % block_size))
    kv = torch.randn((tokens, 2, kv_heads, head_dim), generator=generator)
    kv *= 10 ** torch.randint(-5, 3, (tokens, 1, 1, 1), generator=generator)
    kv[0] = 0.0
    kv = kv.to(dtype)
    write_kv(found, LAYER, slots.to(card), kv.to(card))
    expected.write(LAYER, slots, kv.float())
    assert torch.equal(found.raw.cpu(), expected.raw)


@pytest.mark.parametrize("case", check_kv_write.INT4_CASES, ids=named)
def test_int4_is_the_reference_up_to_one_rounding(case, card, generator):
    expected, rows, kv = check_kv_write.int4_write(case, generator)
    arrays, found = StepArrays.of(rows, expected.layout.block_size), moved(expected, card)
    slots, tails = (torch.from_numpy(part).to(card) for part in (arrays.slots, arrays.tails))
    write_kv(found, LAYER, slots, kv.to(card), tails)
    expected.write_rows(LAYER, rows, kv.float())
    check_kv_write.assert_near(moved(found, torch.device("cpu")), expected)


@pytest.mark.parametrize("size", check_block_copy.SIZES)
def test_blocks_are_moved_whole(size, card, generator):
    before = check_block_copy.drawn(12, size, generator).to(card)
    order = torch.randperm(12, generator=generator).to(card)
    pool, copies = before.clone(), torch.stack((order[:4], order[4:8]))
    copy_blocks(pool, copies)
    expected = before.clone()
    expected[copies[1]] = before[copies[0]]
    assert torch.equal(pool, expected)
    staging = torch.zeros((5, size), dtype=torch.uint8, device=card)
    gather_blocks(before, order[:5], staging)
    assert torch.equal(staging, before[order[:5]])
    scatter_blocks(staging, order[5:10], pool)
    expected[order[5:10]] = staging
    assert torch.equal(pool, expected)


@pytest.mark.parametrize("kv_dtype", check_step.KV_DTYPES)
@pytest.mark.parametrize("spans", [check_step.DECODES, check_step.MIXED], ids=["decodes", "mixed"])
def test_a_step_writes_and_attends_as_the_reference(kv_dtype, spans, card, generator):
    rows, expected, _ = check_step.make_step(spans, kv_dtype, generator)
    found = moved(expected, card)
    tokens = check_step.drawn_tokens(sum(end - start for start, end in spans), generator)
    params = AttentionParams(check_step.HEAD_DIM**-0.5)
    heads, arrays = check_step.HEADS, StepArrays.of(rows, check_step.BLOCK_SIZE)
    ours = TritonStep.of(found, heads, arrays, torch.float32, [None])
    theirs = TorchStep(expected, heads, rows, torch.float32, [None])
    result = check_step.run(ours, [part.to(card) for part in tokens], None, params)
    wanted = check_step.run(theirs, tokens, None, params)
    tolerance = check_step.tolerance_of(expected) or {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(result.cpu(), wanted, **tolerance)


def test_offsets_beyond_32_bits_reach_their_block(card, generator):
    """The last block of a pool of 5 GiB: more elements, and more bytes, than 32 bits count."""
    pool = empty_pool(2, 8, 16, 128, "bfloat16")
    size = pool.layout.bytes_per_block
    count = (5 << 30) // size
    large = KvPool(pool.layout, torch.zeros((count, size), dtype=torch.uint8, device=card))
    kv = torch.randn((3, 2, 8, 128), generator=generator).bfloat16()
    slots = torch.tensor([[count - 1] * 3, [0, 1, 2]])
    write_kv(large, LAYER, slots.to(card), kv.to(card))
    copy_blocks(large.raw, torch.tensor([[count - 1], [count - 2]], device=card))
    pool.write(LAYER, torch.tensor([[1] * 3, [0, 1, 2]]), kv.float())
    assert torch.equal(large.raw[-1].cpu(), pool.raw[1])
    assert torch.equal(large.raw[-2].cpu(), pool.raw[1])
    query = torch.randn((1, 8, 128), generator=generator).bfloat16()
    params = AttentionParams(128**-0.5)
    tables = torch.tensor([[count - 1]], dtype=torch.int32, device=card)
    lengths = torch.tensor([3], dtype=torch.int32, device=card)
    found = decode_attention(query.to(card), large, LAYER, tables, lengths, params)
    (row,) = make_rows([(2, 3)], 16, generator)
    expected = reference(query, pool, [row._replace(block_table=[1])], params)
    torch.testing.assert_close(found.float().cpu(), expected, rtol=2e-2, atol=2e-2)

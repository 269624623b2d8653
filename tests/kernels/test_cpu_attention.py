"""The C++ attention and KV writes against the torch reference, over drawn shapes."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.step import CpuStep, product_dtype
from kernels.open_blocks import in_blocks
from kernels.torch_step import TorchStep
from tests.kernels.cpu_libraries import every_architecture, library
from tests.kernels.pools import DTYPES, empty_pool, fill, numbers_of, pool_of

TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "fp8": 2e-2, "int8": 2e-2, "int4": 2e-2}
LAYERS, GUARD = 2, 512
NAN = float("nan")
POISON = 255  # as bytes: a NaN in float32, bfloat16 and e4m3


@st.composite
def cases(draw):
    """Rows of any kind in any order over a pool of any shape, and how they attend."""
    block_size = draw(st.sampled_from([1, 3, 8, 16, 32, 48, 128]))
    dtype = draw(st.sampled_from(DTYPES))
    head_dims = [8, 33, 64, 80, 96, 128, 256]
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.sampled_from([0, 5, 15, 63, 64, 200, 700]))
        end = start + draw(st.sampled_from([1, 1, 2, 17, 70, 150]))
        blocks = -(-end // block_size)
        rows.append((start, end, blocks))
    return {
        "block_size": block_size,
        "spans": rows,
        "kv_heads": draw(st.sampled_from([1, 2, 3])),
        "group": draw(st.sampled_from([1, 2, 3, 4, 7, 9, 20])),
        "head_dim": draw(st.sampled_from([d for d in head_dims if dtype != "int4" or d % 2 == 0])),
        "window": draw(st.sampled_from([None, None, 1, 9, 100])),
        "softcap": draw(st.sampled_from([None, None, 2.0, 50.0])),
        "dtype": dtype,
        "threads": draw(st.sampled_from([1, 1, 2, 3])),
        "seed": draw(st.integers(0, 2**31)),
    }


def make_rows(spans, generator):
    """Each row has blocks of its own, in no order. Block 0 belongs to none."""
    total = sum(blocks for _, _, blocks in spans)
    ids = (torch.randperm(total, generator=generator) + 1).tolist()
    return [AttentionRow(s, e, [ids.pop() for _ in range(blocks)]) for s, e, blocks in spans]


def poison_unused(pool, rows):
    """NaN in the null block and in all slots behind the last token of a row, as far as the dtype
    has one.
    """
    block_size = pool.layout.block_size
    if pool.int4 is not None:
        poison_unused_int4(pool, rows)
        return
    parts = [pool.elements.view(torch.uint8)] + ([pool.scales] if pool.scales is not None else [])
    for part in parts:
        part[0] = POISON if part.dtype == torch.uint8 else NAN
        for row in rows:
            used = row.end - (len(row.block_table) - 1) * block_size
            part[row.block_table[-1], :, :, :, used:] = POISON if part.dtype == torch.uint8 else NAN


def poison_unused_int4(pool, rows):
    """The keys of an open block are nowhere but in its tail."""
    pool.raw[0] = POISON
    for row in rows:
        used = row.end % pool.layout.block_size
        if used:
            block = row.block_table[row.start // pool.layout.block_size]
            pool.int4.key_scales[block] = POISON
            pool.int4.value_scales[block, :, :, used:] = NAN
            pool.int4.tails[row.tail, :, :, used:] = NAN


def with_tails(rows, pool, generator):
    """The rows in parts of one block, with tails of random keys."""
    size = pool.layout.block_size
    parts = [part for row in rows for part in in_blocks(row, size)]
    pool.int4.tails = torch.randn((len(parts), *pool.int4.tails.shape[1:]), generator=generator)
    pool.int4.tails = pool.int4.tails.to(torch.bfloat16)
    return [part._replace(tail=i) for i, part in enumerate(parts)]


def attend_between_guards(step, query, params):
    buffer = torch.full((query.numel() + 2 * GUARD,), 7.0, dtype=query.dtype)
    out = buffer[GUARD:-GUARD].view(query.shape).fill_(NAN)
    step.attend(1, query, params, out)
    assert (buffer[:GUARD] == 7.0).all(), "wrote before the output"
    assert (buffer[-GUARD:] == 7.0).all(), "wrote behind the output"
    return out


@every_architecture
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_attention_is_the_reference_and_reads_no_slot_that_holds_no_token(architecture, case):
    generator = torch.Generator().manual_seed(case["seed"])
    rows = make_rows(case["spans"], generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    shape = (blocks, LAYERS, 2, case["kv_heads"], case["block_size"], case["head_dim"])
    pool = empty_pool(shape, case["dtype"])
    fill(pool, torch.randn(shape, generator=generator))
    numbers = numbers_of(pool)
    if pool.int4 is not None:
        rows = with_tails(rows, pool, generator)
    num_heads = case["kv_heads"] * case["group"]
    tokens = sum(row.end - row.start for row in rows)
    query = torch.randn((tokens, num_heads, case["head_dim"]), generator=generator)
    query = query.to(product_dtype(pool))
    params = AttentionParams(case["head_dim"] ** -0.5, case["window"], case["softcap"])
    # In float32: the reference rounds at other places in bfloat16.
    exact = pool if pool.int4 is not None else pool_of(numbers)
    reference = TorchStep(exact, num_heads, rows, torch.float32, [case["window"]])
    expected = reference.attend(1, query.float(), params)
    poison_unused(pool, rows)
    step = CpuStep(library(architecture), pool, num_heads, rows, threads=case["threads"])
    found = attend_between_guards(step, query, params)
    tolerance = TOLERANCE[case["dtype"]]
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@every_architecture
@settings(max_examples=15, deadline=None)
@given(case=cases(), normed=st.booleans())
def test_placing_is_the_reference_and_writes_no_other_slot(architecture, case, normed):
    generator = torch.Generator().manual_seed(case["seed"])
    rows = make_rows(case["spans"], generator)
    blocks = 1 + sum(len(row.block_table) for row in rows)
    assume(case["dtype"] != "int4")  # has a test of its own
    head_dim = case["head_dim"] // 2 * 2
    shape = (blocks, LAYERS, 2, case["kv_heads"], case["block_size"], head_dim)
    pools = [empty_pool(shape, case["dtype"]) for _ in range(2)]
    for pool in pools:
        pool.raw.fill_(POISON)
    heads, kv_heads = case["kv_heads"] * case["group"], case["kv_heads"]
    tokens = sum(row.end - row.start for row in rows)
    qkv = torch.randn((tokens, (heads + 2 * kv_heads) * head_dim), generator=generator)
    cos, sin = torch.randn((2, tokens, 1, head_dim), generator=generator)
    norm = torch.randn((heads + kv_heads, head_dim), generator=generator) if normed else None
    steps = [
        TorchStep(pools[0], heads, rows, product_dtype(pools[0]), [None]),
        CpuStep(library(architecture), pools[1], heads, rows, threads=case["threads"]),
    ]
    expected, found = (step.place(1, qkv.clone(), cos, sin, norm, 1e-5) for step in steps)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    if case["dtype"] != "float32":
        tolerance = {"rtol": 2**-7, "atol": 1e-4}  # one rounding, either way
    torch.testing.assert_close(found, expected, **tolerance)
    written = [numbers_of(pool) for pool in pools]
    if case["dtype"] == "fp8":
        tolerance = {"rtol": 2**-3, "atol": 2**-9 * 0.02}
    elif case["dtype"] == "int8":  # one step of the largest number's
        steps = pools[0].scales.float().nan_to_num(0.0, 0.0, 0.0).unsqueeze(-1)
        written = [w / torch.where(steps > 0, steps, 1.0) for w in written]
        tolerance = {"rtol": 1e-2, "atol": 1.1}
    torch.testing.assert_close(written[1], written[0], equal_nan=True, **tolerance)
    padding = pools[0].layout.codes_at
    assert (pools[1].raw[:, padding:] == POISON).all()


@every_architecture
@pytest.mark.parametrize("threads", [1, 3])
def test_g2_32k_keys_are_summed_as_exactly_as_1k(architecture, threads):
    generator = torch.Generator().manual_seed(3)
    pool = torch.randn((2049, 1, 2, 1, 16, 64), generator=generator).to(torch.bfloat16)
    pool[:, :, 1] += 1.0  # a mean that lost weights would shift
    query = torch.randn((1, 4, 64), generator=generator).to(torch.bfloat16)
    errors = []
    for length in (1024, 32768):
        row = AttentionRow(length - 1, length, [*range(1, 1 + length // 16)])
        step = CpuStep(library(architecture), pool_of(pool), 4, [row], threads=threads)
        found = step.attend(0, query, AttentionParams(0.125)).double()
        keys, values = (pool[1 : 1 + length // 16, 0, i, 0].reshape(length, 64) for i in (0, 1))
        weights = (query[0].double() @ keys.double().T * 0.125).softmax(dim=-1)
        errors.append((found[0] - weights @ values.double()).abs().max().item())
    assert errors[1] <= max(errors[0], 2**-8), errors  # 2^-8: half a bfloat16 step at 1


@every_architecture
def test_a_prompt_in_chunks_is_the_prompt_at_once(architecture):
    generator = torch.Generator().manual_seed(4)
    pool = torch.randn((40, 1, 2, 2, 16, 64), generator=generator).to(torch.bfloat16)
    query = torch.randn((600, 6, 64), generator=generator).to(torch.bfloat16)
    params, table = AttentionParams(0.125), [*range(1, 39)]

    def attend(start, end):
        row = AttentionRow(start, end, table)
        step = CpuStep(library(architecture), pool_of(pool), 6, [row], threads=1)
        return step.attend(0, query[start:end], params)

    pieces = [attend(start, min(start + 130, 600)) for start in range(0, 600, 130)]
    torch.testing.assert_close(torch.cat(pieces), attend(0, 600), rtol=2**-7, atol=2**-7)


@every_architecture
def test_a_step_without_rows_does_nothing(architecture):
    pool = torch.zeros((2, 1, 2, 1, 16, 64))
    step = CpuStep(library(architecture), pool_of(pool), 3, [], threads=1)
    assert step.attend(0, torch.empty(0, 3, 64), AttentionParams(0.125)).shape == (0, 3, 64)


def test_what_the_kernels_do_not_compute_runs_on_torch():
    def computes(shape, dtype, num_heads, step_dtype):
        return CpuStep.computes(empty_pool(shape, dtype), num_heads, step_dtype)

    shape = (1, 1, 2, 2, 16, 64)
    assert computes(shape, "float32", 6, torch.float32)
    assert computes(shape, "int8", 6, torch.bfloat16)
    assert not computes(shape, "int8", 6, torch.float32)
    assert not computes(shape, "bfloat16", 6, torch.float32)
    assert not computes((1, 1, 2, 2, 16, 1024), "float32", 6, torch.float32)
    assert not computes((1, 1, 2, 1, 16, 64), "float32", 200, torch.float32)

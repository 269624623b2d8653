"""The benchmark of the Triton kernels in the interpreter, at small shapes and with a clock that is
told: see test_gpu_kernels.py.
"""

import pytest
import torch

from bench import gpu_rivals
from bench.gpu_kernels import Shapes, measure_gpu_kernels
from bench.gpu_rivals import DecodeCase, contiguous_kv, torch_attention
from kernels.attention import AttentionParams
from kernels.triton.decode import decode_attention
from kernels.triton.prefill import prefill_attention
from kvmesh.cli.bench.kernels import gpu_report
from tests.kernels.triton.fixtures import make_pool

CPU = torch.device("cpu")
SMALL = Shapes(
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    decodes=((3, 64), (2, 64), (1, 128)),
    prefills=((32, 32), (16, 48)),
    written=24,
    moved=4,
)


def test_every_kernel_is_timed_at_every_shape_beside_torch():
    runs = []
    result = measure_gpu_kernels(CPU, lambda run: runs.append(run()) or 1e-3, SMALL, copied=1 << 20)
    assert result.copy_bytes_per_second == (2 << 20) / 1e-3
    assert [figure.what for figure in result.figures] == [
        "decode 3 × 64", "decode 2 × 64", "decode 1 × 128", "decode 3 × 64, fp8",
        "decode 3 × 64, int8", "decode 3 × 64, int4", "prefill 32 of 32", "prefill 16 of 48",
        "write 24, bfloat16", "write 24, fp8", "write 24, int8", "write 24, int4",
        "copy 4 blocks", "gather 4 blocks", "scatter 4 blocks",
    ]  # fmt: skip
    for figure in result.figures:
        alone = figure.what.startswith("decode") and "," in figure.what
        alone = alone or figure.what.endswith("int4")
        assert figure.rivals == ({} if alone else {"torch": 1e-3})
    assert [goal.limit for goal in result.goals] == [0.8, 0.65, 0.5, 0.85, 0.85, 0.85]
    moved = 2 * 4 * 2 * (2 * 2 * 16 * 16 * 2)  # read and written, 4 blocks of 2 layers
    assert result.figures[-1].size == moved
    report = gpu_report(result, "a card")
    assert len(report.rows) == len(result.figures)
    assert all(len(row) == len(report.columns) for row in report.rows)


def test_torch_computes_what_the_kernels_compute(generator):
    pool = make_pool(9, 2, 16, 64, "float32", generator)
    pool.elements[:, 0] = pool.elements[:, 1]
    tables = (1 + torch.randperm(8, generator=generator)).int().view(2, 4)
    lengths = torch.full((2,), 64, dtype=torch.int32)
    params = AttentionParams(64**-0.5)
    query = torch.randn((2, 6, 64), generator=generator)
    theirs = torch_attention(query[:, None], pool, tables)()
    ours = decode_attention(query, pool, 0, tables, lengths, params)
    torch.testing.assert_close(ours, theirs[:, :, 0])
    for count in (64, 20):
        query = torch.randn((count, 6, 64), generator=generator)
        theirs = torch_attention(query[None], pool, tables[:1])()
        starts = torch.tensor([0, count], dtype=torch.int32)
        ours = prefill_attention(query, pool, 0, starts, tables[:1], lengths[:1], params)
        torch.testing.assert_close(ours, theirs[0].transpose(0, 1))


def test_pages_of_another_size_hold_the_same_tokens(generator):
    pool = make_pool(65, 2, 16, 64, "bfloat16", generator)
    tables = (1 + torch.randperm(64, generator=generator)).int().view(2, 32)
    query = torch.zeros((2, 4, 64), dtype=torch.bfloat16)
    lengths = torch.full((2,), 512, dtype=torch.int32)
    case = DecodeCase(query, pool, tables, lengths, 512)
    keys, _, pages = gpu_rivals._large_pages(case)
    assert pages.tolist() == [[0, 1], [2, 3]]
    expected, _ = contiguous_kv(pool, tables)
    for row, token in ((0, 3), (0, 300), (1, 511)):
        page = pages[row, token // 256]
        assert torch.equal(keys[page, token % 256], expected[row, :, token])


def test_a_rival_that_fails_says_so(monkeypatch):
    def broken(_case):
        raise TypeError("another release\nwith more to say")

    monkeypatch.setattr(gpu_rivals, "find_spec", lambda name: name if name == "vllm" else None)
    monkeypatch.setattr(gpu_rivals, "_vllm", broken)
    result = measure_gpu_kernels(CPU, lambda run: run() is None or 1e-3, SMALL, copied=64)
    assert result.figures[0].rivals["vLLM"] == "TypeError: another release"
    report = gpu_report(result, "a card")
    assert report.rows[0][-1] == "failed"
    assert report.rows[-1][-1] == ""
    assert "vLLM: TypeError: another release" in report.notes


@pytest.mark.parametrize("seconds", [1e-3, 2e-3])
def test_a_fraction_is_of_the_bytes_that_a_copy_moves(seconds):
    times = iter([1e-3])
    result = measure_gpu_kernels(CPU, lambda run: next(times, seconds), SMALL, copied=1 << 20)
    figure = result.figures[0]
    # 3 sequences of 64 tokens, 2 heads of 16 elements of 2 bytes, keys and values; 3 queries and
    # results of 4 heads.
    assert figure.size == 3 * 64 * 2 * 2 * 16 * 2 + 2 * 3 * 4 * 16 * 2
    expected = figure.size / seconds / (2 * (1 << 20) / 1e-3)
    assert figure.of_copy(result.copy_bytes_per_second) == pytest.approx(expected)

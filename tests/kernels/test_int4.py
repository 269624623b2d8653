"""int4: open blocks, what closes them, and the C++ kernels beside torch."""

import pytest
import torch

from kernels.attention import AttentionParams
from kernels.attention_plan import AttentionRow
from kernels.cpu.step import CpuStep
from kernels.four_bits import as_e5m3, as_half, from_e5m3, quantise, quantise_finely, to_e5m3
from kernels.kv_layout import KvLayout
from kernels.open_blocks import OpenBlocks
from kernels.torch_step import TorchStep
from tests.kernels.cpu_libraries import every_architecture, library
from tests.kernels.pools import empty_pool, numbers_of

LAYERS, HEADS, KV_HEADS, BLOCK_SIZE = 2, 6, 2, 8
STEPS = ((0, 21), (21, 22), (22, 24), (24, 40), (40, 41))
TABLE = [3, 1, 4, 7, 5, 9]


def test_it_holds_more_than_three_times_the_tokens_scales_and_zeros_included():
    plain, packed = (KvLayout(30, 3, 64, 16, each) for each in ("bfloat16", "int4"))
    assert packed.num_blocks(1 << 30) >= 3.2 * plain.num_blocks(1 << 30)


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_g7_every_head_size_of_the_families_fits(head_dim):
    assert KvLayout(2, 2, head_dim, 16, "int4").bytes_per_block > 0


def test_g7_an_odd_head_size_is_refused():
    with pytest.raises(ValueError, match=r"kv_cache_dtype: int4 .* head_dim is 33; use int8"):
        KvLayout(2, 2, 33, 16, "int4")


@pytest.mark.parametrize("offset", [0.0, 3.0, -100.0])
def test_the_error_is_that_of_sixteen_steps_or_less(offset):
    """Beside 15 steps over the whole range, which leaving out the ends can only better."""
    x = torch.randn((50, 16, 64), generator=torch.Generator().manual_seed(1)) + offset
    elements, scales, zeros = quantise(x, 1, as_half)
    assert elements.max() <= 15
    errors = ((elements.float() + zeros / 2) * scales.float() - x).square().mean(dim=1)
    whole = torch.maximum((x.amax(1) - x.amin(1)) / 15, x.abs().amax(1) * 2 / 127)
    assert (errors.sqrt() <= 0.6 * whole + 2e-3 * abs(offset)).all()
    assert errors.mean() <= (whole.square() / 12).mean() * 1.1


def test_e5m3_keeps_three_bits_of_a_scale():
    scales = torch.logspace(-6, 2, 500)
    codes = to_e5m3(scales)
    assert torch.equal(to_e5m3(from_e5m3(codes)), codes)
    assert ((from_e5m3(codes) - scales).abs() <= scales / 16).all()
    assert from_e5m3(to_e5m3(torch.tensor([0.0, 1e9]))).tolist() == [2.0**-24, 240.0]
    assert as_e5m3(torch.tensor([1.5])).item() == 1.5


def test_the_first_value_of_a_block_has_eight_bits():
    x = torch.randn((50, 1, 64), generator=torch.Generator().manual_seed(2))
    (elements, scales, zeros), fine = quantise_finely(x, as_half)
    found = (elements + fine / 16 + zeros / 2) * scales
    assert ((found - x).abs() <= scales / 16 + 1e-3).all()


def write(make_step, head_dim):
    """A sequence that comes in `STEPS`; the pool afterwards."""
    pool = empty_pool((10, LAYERS, 2, KV_HEADS, BLOCK_SIZE, head_dim), "int4", 3)
    open_blocks = OpenBlocks(pool.int4)
    draw = torch.Generator().manual_seed(head_dim)
    for start, end in STEPS:
        rows = open_blocks.begin_step([AttentionRow(start, end, TABLE)])
        step = make_step(pool, rows)
        for layer in range(LAYERS):
            size = (end - start, (HEADS + 2 * KV_HEADS) * head_dim)
            qkv = torch.randn(size, generator=draw)
            cos, sin = torch.randn((2, end - start, 1, head_dim), generator=draw)
            step.place(layer, qkv, cos, sin, None, 1e-5)
    return pool


@every_architecture
@pytest.mark.parametrize("head_dim", [8, 64, 80])
def test_placing_is_the_reference(architecture, head_dim):
    expected = write(lambda p, rows: TorchStep(p, HEADS, rows, torch.bfloat16, [None]), head_dim)
    found = write(lambda p, rows: CpuStep(library(architecture), p, HEADS, rows), head_dim)
    key_scales, value_scales = from_e5m3(expected.int4.key_scales), expected.int4.value_scales
    scales = (key_scales.unsqueeze(3), value_scales.unsqueeze(4))
    for part, scale in enumerate(scales):
        numbers = [numbers_of(pool)[TABLE[:5], :, part] for pool in (found, expected)]
        steps = (numbers[0] - numbers[1]) / scale[TABLE[:5]].float()
        assert steps.abs().max() <= 1.1, "more than one rounding, either way"
        assert (steps.abs() > 0.5).float().mean() < 0.01
    torch.testing.assert_close(found.int4.tails, expected.int4.tails, rtol=2**-7, atol=1e-3)


@every_architecture
def test_a_query_reads_the_keys_of_its_own_block_unquantised(architecture):
    """Whatever steps the sequence comes in: all of its answers are equal."""
    draw = torch.Generator().manual_seed(5)
    qkv = torch.randn((40, (HEADS + 2 * KV_HEADS) * 64), generator=draw)
    cos, sin = torch.ones(40, 1, 64), torch.zeros(40, 1, 64)
    found = []
    for steps in ([(0, 40)], [(0, 3), (3, 8), (8, 21), (21, 40)], [(i, i + 1) for i in range(40)]):
        pool = empty_pool((10, LAYERS, 2, KV_HEADS, BLOCK_SIZE, 64), "int4", 8)
        open_blocks = OpenBlocks(pool.int4)
        parts = []
        for start, end in steps:
            rows = open_blocks.begin_step([AttentionRow(start, end, TABLE)])
            step = CpuStep(library(architecture), pool, HEADS, rows)
            part = (each[start:end].clone() for each in (qkv, cos, sin))
            query = step.place(0, *part, None, 1e-5)
            parts.append(step.attend(0, query, AttentionParams(0.125)))
        found.append(torch.cat(parts).float())
    exact = pool_of_numbers(qkv)
    assert (found[0] - exact).abs().max() < 0.5
    torch.testing.assert_close(found[0][:8], exact[:8], atol=0.3, rtol=0.0)
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=2**-6, rtol=2**-7)


def pool_of_numbers(qkv):
    """The same answers out of a pool that is not quantised."""
    pool = empty_pool((10, LAYERS, 2, KV_HEADS, BLOCK_SIZE, 64), "float32")
    step = TorchStep(pool, HEADS, [AttentionRow(0, 40, TABLE)], torch.float32, [None])
    query = step.place(0, qkv.clone(), torch.ones(40, 1, 64), torch.zeros(40, 1, 64), None, 1e-5)
    return step.attend(0, query, AttentionParams(0.125))


class TestOpenBlocks:
    """Blocks of 8 with room for three tails."""

    @pytest.fixture
    def pool(self):
        return empty_pool((10, LAYERS, 2, KV_HEADS, BLOCK_SIZE, 8), "int4", 3)

    @pytest.fixture
    def open_blocks(self, pool):
        return OpenBlocks(pool.int4)

    def begin(self, open_blocks, start, end, table):
        *_, part = open_blocks.begin_step([AttentionRow(start, end, table)])
        return part.tail

    def test_a_sequence_keeps_its_tail_until_the_block_is_full(self, open_blocks):
        first = self.begin(open_blocks, 0, 3, [1])
        assert first >= 0
        assert self.begin(open_blocks, 3, 4, [1]) == first
        assert self.begin(open_blocks, 4, 8, [1]) == first, "its keys are needed once more"
        others = {self.begin(open_blocks, 0, 1, [block]) for block in (2, 3, 4)}
        assert others == {0, 1, 2}, "all are free again"

    def test_a_row_comes_in_parts_of_one_block_each(self, open_blocks):
        parts = open_blocks.begin_step([AttentionRow(5, 19, [1, 2, 3])])
        assert [(part.start, part.end) for part in parts] == [(5, 8), (8, 16), (16, 19)]
        assert len({part.tail for part in parts}) == 3

    def test_whole_blocks_need_theirs_for_one_step(self, open_blocks):
        for _ in range(3):
            parts = open_blocks.begin_step([AttentionRow(0, 24, [1, 2, 3])])
            assert {part.tail for part in parts} == {0, 1, 2}

    def test_the_longest_unused_is_closed_when_there_are_no_more(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        keys = torch.randn(pool.int4.tails[tail].shape)
        pool.int4.tails[tail] = keys
        for block in (2, 3, 4):
            self.begin(open_blocks, 0, 1, [block])
        again = self.begin(open_blocks, 3, 4, [1])
        scales = from_e5m3(pool.int4.key_scales[1]).unsqueeze(-2)
        errors = (pool.int4.tails[again, :, :, :3].float() - keys[:, :, :3]).abs()
        assert (errors <= 1.01 * scales + 0.02).all()

    def test_a_copy_of_an_open_block_is_open(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = 7.0
        open_blocks.copy([(1, 5)])
        copied = self.begin(open_blocks, 3, 4, [5])
        assert copied != tail
        assert (pool.int4.tails[copied] == 7.0).all()
        assert self.begin(open_blocks, 3, 4, [1]) == tail

    def test_a_block_that_was_replaced_is_read_from_the_pool(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = 7.0
        open_blocks.copy_up([(6, 1)])
        again = self.begin(open_blocks, 3, 4, [1])
        assert (pool.int4.tails[again, :, :, :3] == 0.0).all()

    def test_what_another_left_open_is_not_taken_for_ones_own(self, pool, open_blocks):
        """A freed block whose next owner fills it in one step, then shares it by copy."""
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = 7.0
        self.begin(open_blocks, 0, 8, [1])
        open_blocks.copy([(1, 5)])
        again = self.begin(open_blocks, 3, 4, [5])
        assert (pool.int4.tails[again, :, :, :3] == 0.0).all()

    def test_closing_for_a_copy_down_leaves_it_open(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = torch.randn(pool.int4.tails[tail].shape)
        open_blocks.copy_down([(1, 6), (2, 7)])
        assert (pool.int4.key_scales[1] > 0).all()
        assert self.begin(open_blocks, 3, 4, [1]) == tail

    def test_keys_of_an_open_block_go_down_and_come_up(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        keys = torch.randn(pool.int4.tails[tail].shape).to(pool.int4.tails.dtype)
        pool.int4.tails[tail] = keys
        open_blocks.copy_down([(1, 6)])
        self.begin(open_blocks, 0, 8, [1])  # the block is another's now
        pool.int4.tails[:] = 7.0
        open_blocks.copy_up([(6, 4)])
        again = self.begin(open_blocks, 3, 4, [4])
        assert torch.equal(pool.int4.tails[again, :, :, :3], keys[:, :, :3])

    def test_what_a_block_of_the_cpu_pool_held_before_does_not_come_up(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = 7.0
        open_blocks.copy_down([(1, 6)])
        open_blocks.copy_down([(2, 6)])
        open_blocks.copy_up([(6, 4)])
        again = self.begin(open_blocks, 3, 4, [4])
        assert (pool.int4.tails[again, :, :, :3] == 0.0).all()

    def test_no_more_keys_are_kept_below_than_there_are_tails(self, pool, open_blocks):
        for place in range(4):
            self.begin(open_blocks, 0, 3, [1])
            pool.int4.tails[:] = float(1 + place)
            open_blocks.copy_down([(1, 6 + place)])
        open_blocks.copy_up([(6, 4), (9, 5)])
        first, last = (self.begin(open_blocks, 3, 4, [block]) for block in (4, 5))
        assert not (pool.int4.tails[first, :, :, :3] == 1.0).any()
        assert (pool.int4.tails[last, :, :, :3] == 4.0).all()

"""int4: open blocks, what closes them, and the C++ kernels beside torch."""

import pytest
import torch

from kernels.attention_plan import AttentionRow
from kernels.cpu.step import CpuStep
from kernels.kv_int4 import quantise_int4
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
    elements, scales, zeros = quantise_int4(x, dim=1)
    assert elements.max() <= 15
    errors = ((elements.float() + zeros) * scales.float() - x).square().mean(dim=1)
    whole = torch.maximum((x.amax(1) - x.amin(1)) / 15, x.abs().amax(1) / 127)
    assert (errors.sqrt() <= 0.6 * whole + 2e-3 * abs(offset)).all()
    assert errors.mean() <= (whole.square() / 12).mean() * 1.1


def write(make_step, head_dim):
    """A sequence that comes in `STEPS`; the pool afterwards."""
    pool = empty_pool((10, LAYERS, 2, KV_HEADS, BLOCK_SIZE, head_dim), "int4", 2)
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
    scales = (expected.int4.key_scales.unsqueeze(3), expected.int4.value_scales.unsqueeze(4))
    for part, scale in enumerate(scales):
        numbers = [numbers_of(pool)[TABLE[:5], :, part] for pool in (found, expected)]
        steps = (numbers[0] - numbers[1]) / scale[TABLE[:5]].float()
        assert steps.abs().max() <= 1.1, "more than one rounding, either way"
        assert (steps.abs() > 0.5).float().mean() < 0.01
    torch.testing.assert_close(found.int4.tails, expected.int4.tails, rtol=2**-7, atol=1e-3)


class TestOpenBlocks:
    """Blocks of 8 with room for two tails."""

    @pytest.fixture
    def pool(self):
        return empty_pool((10, LAYERS, 2, KV_HEADS, BLOCK_SIZE, 8), "int4", 2)

    @pytest.fixture
    def open_blocks(self, pool):
        return OpenBlocks(pool.int4)

    def begin(self, open_blocks, start, end, table):
        (row,) = open_blocks.begin_step([AttentionRow(start, end, table)])
        return row.tail

    def test_a_sequence_keeps_its_tail_until_the_block_is_full(self, open_blocks):
        first = self.begin(open_blocks, 0, 3, [1])
        assert first >= 0
        assert self.begin(open_blocks, 3, 4, [1]) == first
        assert self.begin(open_blocks, 4, 8, [1]) == first, "its keys are needed once more"
        others = {self.begin(open_blocks, 0, 1, [block]) for block in (2, 3)}
        assert others == {0, 1}, "both are free again"

    def test_whole_blocks_need_none(self, open_blocks):
        assert self.begin(open_blocks, 0, 16, [1, 2]) == -1
        assert self.begin(open_blocks, 16, 24, [1, 2, 3]) == -1

    def test_the_longest_unused_is_closed_when_there_are_no_more(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        keys = torch.randn(pool.int4.tails[tail].shape)
        pool.int4.tails[tail] = keys
        for block in (2, 3):
            self.begin(open_blocks, 0, 1, [block])
        again = self.begin(open_blocks, 3, 4, [1])
        scales = pool.int4.key_scales[1].float().unsqueeze(-2)
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
        open_blocks.forget([1])
        again = self.begin(open_blocks, 3, 4, [1])
        assert (pool.int4.tails[again, :, :, :3] == 0.0).all()

    def test_what_another_left_open_is_not_taken_for_ones_own(self, pool, open_blocks):
        """A freed block whose next owner fills it in one step, then shares it by copy."""
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = 7.0
        assert self.begin(open_blocks, 0, 8, [1]) == -1
        open_blocks.copy([(1, 5)])
        again = self.begin(open_blocks, 3, 4, [5])
        assert (pool.int4.tails[again, :, :, :3] == 0.0).all()

    def test_closing_for_a_copy_down_leaves_it_open(self, pool, open_blocks):
        tail = self.begin(open_blocks, 0, 3, [1])
        pool.int4.tails[tail] = torch.randn(pool.int4.tails[tail].shape)
        open_blocks.close([1, 2])
        assert (pool.int4.key_scales[1] > 0).all()
        assert self.begin(open_blocks, 3, 4, [1]) == tail

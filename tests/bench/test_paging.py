"""What paging costs, on a tiny model: which steps and copies are timed."""

import pytest

from bench import paging
from bench.paging import measure_paging
from cache_node.step_plan import StepPlan
from kvmesh.cli.bench.paging import report
from tests.tiny_model import save_tiny


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.setattr(paging, "BLOCK_SIZES", (8, 16))
    monkeypatch.setattr(paging, "CONTEXT", 32)
    monkeypatch.setattr(paging, "LENGTHS", (16, 48))
    return save_tiny(tmp_path / "tiny")


def test_every_block_size_and_length_is_measured(small):
    found = measure_paging(small, 1, dtype="float32")
    assert list(found.decode) == [8, 16]
    assert [each.tokens for each in found.ways_back] == [16, 48]
    assert all(each.swapped > 0 < each.computed for each in found.ways_back)
    table = report(found)
    assert len(table.rows) == 2 + 2 * 2
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert found.goals[0].value == max(each.swapped / each.computed for each in found.ways_back)


@pytest.mark.parametrize("size", [8, 16])
def test_a_decode_step_has_a_token_for_each_sequence_in_blocks_of_its_own(size):
    plan = paging._decode_plan(size)
    tables = [row.block_table for row in plan.rows]
    assert plan.num_tokens == len(tables) == paging.BATCH
    assert len({block for table in tables for block in table}) == sum(map(len, tables))
    assert all(len(table) * size == paging.CONTEXT for table in tables)
    assert all(row.start == paging.CONTEXT - 1 for row in plan.rows)


def test_a_swap_takes_the_content_down_and_up(small):
    executor = paging._load(small, paging.SWAP_BLOCK_SIZE, "float32")
    executor.pool.raw[1:3] = 7
    copies = [paging.BlockCopy(1, 1), paging.BlockCopy(2, 2)]
    executor.run(StepPlan([], offloads=copies))
    executor.pool.raw[1:3] = 0
    executor.swap.load(2, copies, lambda *_: None)
    paging._swap(executor, [paging.BlockCopy(3, 3)])  # loads are made one after the other
    assert (executor.pool.raw[1:3] == 7).all()

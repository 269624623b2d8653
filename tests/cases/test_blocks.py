"""Blocks, references and keys: the cases that the block pool answers for."""

import pytest

from tests.cache_node.pool_content import cached, chain, make_pool


def test_b1_a_block_freed_twice_is_an_error_and_breaks_nothing():
    pool = make_pool(4)
    table = pool.allocate(2)
    pool.free(table)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.free(table)
    other = pool.allocate(1)
    with pytest.raises(ValueError, match="nobody holds it"):
        pool.free(other * 2)
    assert pool.num_free == 4
    assert pool.check_integrity([]) == []


def test_c6_a_reused_block_loses_its_key_in_the_same_call():
    pool = make_pool(1)
    cached(pool, [*range(4)])
    pool.allocate(1)
    assert pool.lookup(chain([*range(4)])) == []


def test_d1_two_contents_forced_to_one_key_are_a_miss():
    pool = make_pool(2)
    cached(pool, [*range(4)])
    (content,) = chain([*range(4)])
    forged = content._replace(tokens=b"\0" * 16)
    other_parent = content._replace(parent=b"p" * 16)
    assert len(pool.lookup([content])) == 1
    assert pool.lookup([forged]) == []
    assert pool.lookup([other_parent]) == []

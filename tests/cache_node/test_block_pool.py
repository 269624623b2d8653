"""The block pool's contract, and its invariants under any order of calls."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefix_index.events import Removed, Stored
from tests.cache_node.pool_content import cached, chain, make_pool


def test_allocate_is_all_or_nothing():
    pool = make_pool(4)
    held = pool.allocate(3)
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    assert pool.check_integrity([held]) == []


def test_hits_are_not_evicted_by_their_own_allocation():
    pool = make_pool(3)
    cached(pool, [*range(8)])
    hits = pool.lookup(chain([*range(8)]))
    table = pool.allocate(1, hits)
    assert table[:2] == hits
    assert pool.allocate(1) is None
    assert pool.lookup(chain([*range(8)])) == hits


def test_an_allocation_counts_the_hits_that_lie_in_the_free_list():
    pool = make_pool(3)
    cached(pool, [*range(8)])
    assert pool.allocate(2, pool.lookup(chain([*range(8)]))) is None
    assert pool.num_free == 3
    assert pool.check_integrity([]) == []


def test_a_freed_prefix_stays_hit_able_and_keyless_blocks_go_first():
    pool = make_pool(4)
    cached(pool, [*range(8)])
    pool.free(pool.allocate(2))
    pool.allocate(2)
    assert len(pool.lookup(chain([*range(8)]))) == 2


def test_the_least_recently_used_prefix_goes_first_and_from_its_end():
    pool = make_pool(4)
    cached(pool, [*range(8)])
    cached(pool, [*range(100, 108)])
    pool.allocate(1)
    assert len(pool.lookup(chain([*range(8)]))) == 1
    assert len(pool.lookup(chain([*range(100, 108)]))) == 2


def test_events_tell_what_can_be_hit():
    pool = make_pool(2)
    contents = chain([*range(8)])
    cached(pool, [*range(8)])
    assert [type(event) for event in pool.events] == [Stored, Stored]
    pool.allocate(1)
    assert pool.events[2:] == [Removed(contents[1].key, 1)]
    held = pool.allocate(0, pool.lookup(chain([*range(4)])))
    assert pool.clear_cache() == 0
    pool.free(held)
    assert pool.clear_cache() == 1
    assert pool.events[3:] == [Removed(contents[0].key, 1)]


def test_an_evicted_block_is_told_before_its_content_is_gone():
    pool, evicted = make_pool(1), []
    (block,) = cached(pool, [*range(4)])
    pool.on_evict = lambda *told: evicted.append(told)
    pool.allocate(1)
    assert evicted == [(block, chain([*range(4)])[0])]


def test_the_longest_beginning_after_a_parent_is_found():
    pool = make_pool(8)
    cached(pool, [0, 1, 2, 3, 10, 11, 12, 13])
    cached(pool, [0, 1, 2, 3, 10, 11, 99, 99])
    parent = chain([0, 1, 2, 3])[0].key
    block, shared = pool.find_partial(parent, [10, 11, 12, 50])
    assert shared == 3
    assert block == pool.lookup(chain([0, 1, 2, 3, 10, 11, 12, 13]))[1]
    assert pool.find_partial(parent, [77]) is None
    assert pool.find_partial(b"p" * 16, [10]) is None


class PoolMachine(RuleBasedStateMachine):
    """Any order of allocate, share, publish, free and clear keeps the invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = make_pool(12, 1)
        self.tables: list[list[int]] = []
        self.tokens: list[list[int]] = []

    @rule(length=st.integers(1, 6), base=st.integers(0, 3))
    def allocate(self, length: int, base: int) -> None:
        tokens = [base, *range(length - 1)]
        hits = self.pool.lookup(chain(tokens, 1))
        before = self.pool.num_free
        table = self.pool.allocate(length - len(hits), hits)
        if table is None:
            assert self.pool.num_free == before
            return
        assert len(table) == length
        self.tables.append(table)
        self.tokens.append(tokens)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.tables) - 1))
        for block, content in zip(self.tables[i], chain(self.tokens[i], 1), strict=True):
            self.pool.publish(block, content)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.tables) - 1))
        self.pool.free(self.tables.pop(i))
        self.tokens.pop(i)

    @rule()
    def clear(self) -> None:
        self.pool.clear_cache()

    @invariant()
    def sound(self) -> None:
        assert self.pool.check_integrity(self.tables) == []


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

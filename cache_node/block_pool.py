"""The KV blocks of one memory: who holds them, and which of them can be found by key."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from cache_node.free_list import Block, FreeList
from cache_node.key_chain import BlockContent
from cache_node.key_index import KeyIndex
from cache_node.step_plan import NULL_BLOCK, BlockId
from prefix_index.events import Event, Removed, Stored, Tier

Evicted = Callable[[BlockId, BlockContent], None]


class BlockPool:
    """All KV blocks of one memory. Every block is in exactly one state:

        free ──allocate──▶ held ──free──▶ cached (has a key, still hit-able) ──allocate──▶ held
                            ▲                 │
                            └────── hit ──────┘

    The pool owns the blocks; a block table owns one reference per entry. A block gets its key by
    `publish`, after the step that filled it; it loses the key in the call that reuses it, which
    first tells `on_evict`. Nothing here touches a tensor.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        tier: Tier,
        events: list[Event],
    ) -> None:
        """`events` receives what becomes visible in `tier` and what goes; its owner drains it."""
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, is {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.on_evict: Evicted | None = None
        self._tier = tier
        self._blocks = [Block(i) for i in range(NULL_BLOCK, num_blocks + 1)]
        self._free = FreeList(self._blocks[1:])
        self._index = KeyIndex()
        self._evictable = 0
        self._events = events

    @property
    def num_free(self) -> int:
        """Blocks that can be allocated now: those in no use, and the evictable ones."""
        return len(self._free)

    @property
    def num_evictable(self) -> int:
        """Blocks that nobody holds and that can still be hit."""
        return self._evictable

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def find(self, content: BlockContent) -> BlockId | None:
        """The block with `content`. Takes no reference: use it before anything is allocated."""
        block = self._index.find(content)
        return None if block is None else block.id

    def find_key(self, key: bytes) -> BlockId | None:
        """The block with `key`, whatever it was made of: for hints, not for answers."""
        block = self._index.find_key(key)
        return None if block is None else block.id

    def find_partial(self, parent: bytes, tokens: Sequence[int]) -> tuple[BlockId, int] | None:
        """A block to copy from: it follows `parent` and begins like `tokens`, so many of them."""
        match = self._index.find_partial(parent, tokens)
        return None if match is None else (match[0].id, match[1])

    def lookup(self, chain: Iterable[BlockContent]) -> list[BlockId]:
        """The longest leading run of `chain` that is here. Takes no reference."""
        hits: list[BlockId] = []
        for content in chain:
            block = self.find(content)
            if block is None:
                break
            hits.append(block)
        return hits

    def references(self, block_id: BlockId) -> int:
        return self._blocks[block_id].ref_count

    def can_allocate(self, count: int, hits: Sequence[BlockId] = (), spare: int = 0) -> bool:
        """Whether `allocate(count, hits)` would succeed and leave `spare` blocks."""
        from_free = sum(self._blocks[hit].ref_count == 0 for hit in set(hits))
        return count + from_free + spare <= len(self._free)

    def allocate(self, count: int, hits: Sequence[BlockId] = ()) -> list[BlockId] | None:
        """Takes one reference on each of `hits` and on `count` other blocks, or returns None and
        changes nothing.

        Hits are taken first, so that an allocation never evicts what it is about to reuse.
        """
        if not self.can_allocate(count, hits):
            return None
        for hit in hits:
            self._take(self._blocks[hit])
        return [*hits, *(self._reuse() for _ in range(count))]

    def share(self, table: Sequence[BlockId]) -> list[BlockId]:
        """One more reference on each block of `table`, for a second table with the same blocks."""
        for block_id in table:
            assert self._blocks[block_id].ref_count > 0, f"block {block_id} is shared, not held"
            self._take(self._blocks[block_id])
        return list(table)

    def free(self, table: Sequence[BlockId]) -> None:
        """Gives one reference back for each entry. The end of a prefix is reused before its
        beginning.

        Raises ValueError for a block that nobody holds; what came after it stays given back.
        """
        for block_id in reversed(table):
            block = self._blocks[block_id]
            if block.ref_count == 0:
                raise ValueError(f"block {block_id} is freed, but nobody holds it")
            block.ref_count -= 1
            if block.ref_count == 0:
                self._put_back(block)

    def publish(self, block_id: BlockId, content: BlockContent) -> None:
        """Makes a held, completely written block hit-able. A second copy of the same content stays
        private.
        """
        block = self._blocks[block_id]
        assert block.ref_count > 0, f"block {block_id} is published, but nobody holds it"
        if self._index.add(block, content):
            self._events.append(Stored(content.key, self._tier))

    def clear_cache(self) -> int:
        """Forgets the keys of all blocks that nobody holds. Returns how many those were."""
        cached = [block for block in self._free if block.key is not None]
        for block in cached:
            self._free.remove(block)
            self._events.append(Removed(self._index.remove(block).key, self._tier))
            self._free.push_first(block)
        self._evictable = 0
        return len(cached)

    def check_integrity(self, tables: Iterable[Sequence[BlockId]]) -> list[str]:
        """Violations of the invariants, given all references there are. O(blocks): for tests and
        operators.
        """
        references = Counter(block_id for table in tables for block_id in table)
        listed = [block.id for block in self._free]
        unheld = {block.id for block in self._blocks[1:] if block.ref_count == 0}
        checks = {
            "the null block is in use": self._blocks[NULL_BLOCK].ref_count > 0
            or references[NULL_BLOCK] > 0,
            "list length and counter differ": len(listed) != len(self._free),
            "a block is listed twice": len(set(listed)) != len(listed),
            "listed blocks are not those without references": set(listed) != unheld,
            "reference counts differ from the tables": any(
                block.ref_count != references[block.id] for block in self._blocks
            ),
            "evictable count is wrong": self._evictable
            != sum(block.key is not None for block in self._free),
        }
        found = [violation for violation, broken in checks.items() if broken]
        return found + self._index.violations(self._blocks)

    def _take(self, block: Block) -> None:
        if block.ref_count == 0:
            self._free.remove(block)
            self._evictable -= block.key is not None
        block.ref_count += 1

    def _reuse(self) -> BlockId:
        block = self._free.pop_first()
        if block.key is not None:
            self._evictable -= 1
            content = self._index.remove(block)
            self._events.append(Removed(content.key, self._tier))
            if self.on_evict is not None:
                self.on_evict(block.id, content)
        block.ref_count = 1
        return block.id

    def _put_back(self, block: Block) -> None:
        if block.key is None:
            self._free.push_first(block)
        else:
            self._free.push_last(block)
            self._evictable += 1

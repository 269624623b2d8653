"""The KV blocks of one device: who holds them, and which of them can be found by key."""

from collections import Counter
from collections.abc import Iterable, Sequence

from cache_node.free_list import Block, FreeList
from cache_node.key_chain import BlockContent
from cache_node.step_plan import NULL_BLOCK, BlockId
from kvmesh.v1.cache_node_pb2 import TIER_GPU
from prefix_index.events import Cleared, Event, Removed, Stored


class BlockPool:
    """All KV blocks of one device. Every block is in exactly one state:

        free ──allocate──▶ held ──free──▶ cached (has a key, still hit-able) ──allocate──▶ held
                            ▲                 │
                            └────── hit ──────┘

    The pool owns the blocks; a block table owns one reference per entry. A block gets its key by
    `publish`, after the step that filled it; it loses the key in the call that reuses it. Nothing
    here touches a tensor.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, is {num_blocks}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._blocks = [Block(i) for i in range(NULL_BLOCK, num_blocks + 1)]
        self._free = FreeList(self._blocks[1:])
        self._by_key: dict[bytes, Block] = {}
        self._evictable = 0
        self._events: list[Event] = []

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

    def lookup(self, chain: Iterable[BlockContent]) -> list[BlockId]:
        """The longest leading run of `chain` that is here. Takes no reference: allocate with it
        before anything else.
        """
        hits: list[BlockId] = []
        for content in chain:
            block = self._by_key.get(content.key)
            if block is None or block.parent != content.parent or block.tokens != content.tokens:
                break
            hits.append(block.id)
        return hits

    def can_allocate(self, count: int, hits: Sequence[BlockId] = (), spare: int = 0) -> bool:
        """Whether `allocate(count, hits)` would succeed and leave `spare` blocks."""
        from_free = sum(self._blocks[hit].ref_count == 0 for hit in hits)
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

    def free(self, table: Sequence[BlockId]) -> None:
        """Gives one reference back for each entry. The end of a prefix is reused before its
        beginning.

        Raises ValueError for a block that nobody holds; what came before it stays given back.
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
        if block.key is not None or content.key in self._by_key:
            return
        block.key, block.parent, block.tokens = content
        self._by_key[content.key] = block
        self._events.append(Stored(content.key, TIER_GPU))

    def clear_cache(self) -> int:
        """Forgets every key; held blocks stay held. Returns how many keys there were."""
        count = len(self._by_key)
        for block in self._by_key.values():
            block.key, block.parent, block.tokens = None, b"", b""
        self._by_key.clear()
        self._evictable = 0
        self._events.append(Cleared())
        return count

    def drain_events(self) -> list[Event]:
        """What became visible or went away since the last call, in order."""
        events, self._events = self._events, []
        return events

    def check_integrity(self, tables: Iterable[Sequence[BlockId]]) -> list[str]:
        """Violations of the invariants, given all block tables there are. O(blocks): for tests and
        operators.
        """
        references = Counter(block_id for table in tables for block_id in table)
        listed = [block.id for block in self._free]
        checks = {
            "the null block is in use": self._blocks[NULL_BLOCK].ref_count
            or references[NULL_BLOCK],
            "list length and counter differ": len(listed) != len(self._free),
            "a block is listed twice": len(set(listed)) != len(listed),
            "listed blocks are not those without references": set(listed)
            != {b.id for b in self._blocks[1:] if b.ref_count == 0},
            "reference counts differ from the tables": any(
                b.ref_count != references[b.id] for b in self._blocks
            ),
            "key map and blocks disagree": self._by_key
            != {b.key: b for b in self._blocks if b.key is not None},
            "evictable count is wrong": self._evictable
            != sum(b.ref_count == 0 and b.key is not None for b in self._blocks),
        }
        return [violation for violation, broken in checks.items() if broken]

    def _take(self, block: Block) -> None:
        if block.ref_count == 0:
            self._free.remove(block)
            self._evictable -= block.key is not None
        block.ref_count += 1

    def _reuse(self) -> BlockId:
        block = self._free.pop_first()
        if block.key is not None:
            del self._by_key[block.key]
            self._events.append(Removed(block.key, TIER_GPU))
            block.key, block.parent, block.tokens = None, b"", b""
            self._evictable -= 1
        block.ref_count = 1
        return block.id

    def _put_back(self, block: Block) -> None:
        if block.key is None:
            self._free.push_first(block)
        else:
            self._free.push_last(block)
            self._evictable += 1

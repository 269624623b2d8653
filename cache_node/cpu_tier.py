"""The CPU pool: where blocks go before they are reused, and where preempted sequences wait."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from cache_node.block_pool import BlockPool
from cache_node.key_chain import BlockContent
from cache_node.sequence import Sequence
from cache_node.step_plan import BlockCopy, BlockId


@dataclass(frozen=True, slots=True)
class _Offload:
    copy: BlockCopy
    content: BlockContent | None  # None: private to a swapped sequence


class CpuTier:
    """One pool for two uses: a second-tier prefix cache, and swap space.

        KV block ──offload, in the step that reuses it──▶ CPU block ──load, beside steps──▶ KV block

    Owns the references on CPU blocks of offloads that have not run yet; a swapped sequence owns
    those of its blocks. A CPU block can be hit only after the step that filled it.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.offloaded_blocks = 0
        self._pending: list[_Offload] = []
        self._by_source: dict[BlockId, BlockId] = {}  # of the pending ones
        self._by_key: dict[bytes, BlockId] = {}

    def find(self, content: BlockContent) -> BlockId | None:
        """The CPU block that holds `content` now."""
        return self.pool.find(content)

    def keep(self, block: BlockId, content: BlockContent) -> None:
        """A KV block with a key is about to be reused: its content moves down, if there is room."""
        if content.key in self._by_key or self.pool.find(content) is not None:
            return
        table = self.pool.allocate(1)
        if table is not None:
            self._add(block, table[0], content)

    def swap_out(self, sequence: Sequence, contents: Seq[BlockContent]) -> bool:
        """Moves the computed blocks of a sequence down and holds them for it; all or nothing.

        `contents` are those of its published blocks. What is here already, or on its way, is
        shared.
        """
        count = self.pool.blocks_for(sequence.num_computed)
        places = [self._placed(sequence.block_table[i], _at(contents, i)) for i in range(count)]
        hits = [place for place in places if place is not None]
        table = self.pool.allocate(count - len(hits), hits)
        if table is None:
            return False
        fresh = iter(table[len(hits) :])
        for i, found in enumerate(places):
            place = next(fresh) if found is None else found
            if found is None:
                self._add(sequence.block_table[i], place, _at(contents, i), held=True)
            sequence.swapped.append(place)
        sequence.swapped_tokens = sequence.num_computed
        return True

    def release(self, sequence: Sequence) -> None:
        """Gives back what was held for a swapped sequence."""
        self.pool.free(sequence.swapped)
        sequence.swapped, sequence.swapped_tokens = [], 0

    @property
    def pending(self) -> list[BlockCopy]:
        """The offloads that the next step must run first."""
        return [offload.copy for offload in self._pending]

    def commit(self) -> None:
        """The step has run: what it offloaded can be hit."""
        for offload in self._pending:
            if offload.content is not None:
                self.pool.publish(offload.copy.destination, offload.content)
        self.offloaded_blocks += len(self._pending)
        self._forget()

    def rollback(self) -> None:
        """The step has failed: nobody knows what its offloads hold. Swapped sequences of the step
        have to be ended by the caller.
        """
        self._forget()

    def _forget(self) -> None:
        self.pool.free([offload.copy.destination for offload in self._pending])
        self._pending = []
        self._by_source, self._by_key = {}, {}

    def _placed(self, block: BlockId, content: BlockContent | None) -> BlockId | None:
        """The CPU block that has, or will have, what the KV block `block` holds."""
        if block in self._by_source:
            return self._by_source[block]
        if content is None:
            return None
        return self._by_key.get(content.key, self.pool.find(content))

    def _add(
        self, source: BlockId, place: BlockId, content: BlockContent | None, held: bool = False
    ) -> None:
        if held:
            self.pool.share([place])  # one reference for the sequence, one until the step has run
        self._pending.append(_Offload(BlockCopy(source, place), content))
        self._by_source[source] = place
        if content is not None:
            self._by_key[content.key] = place


def _at(contents: Seq[BlockContent], place: int) -> BlockContent | None:
    return contents[place] if place < len(contents) else None

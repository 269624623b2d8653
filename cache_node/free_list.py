"""Blocks, and the list of those that nobody holds, in the order in which they will be reused."""

from collections.abc import Iterable, Iterator

from cache_node.step_plan import BlockId


class Block:
    """One block of the KV pool. `key` is set while its content is complete and may be shared.

    `parent` and `tokens` are what the key was made of: a hit compares them, so that a collision is
    a miss.
    """

    __slots__ = ("id", "key", "next", "parent", "previous", "ref_count", "tokens")

    def __init__(self, block_id: BlockId) -> None:
        self.id = block_id
        self.ref_count = 0
        self.key: bytes | None = None
        self.parent: bytes = b""
        self.tokens: bytes = b""
        self.previous: Block | None = None
        self.next: Block | None = None


class FreeList:
    """A doubly linked list through the blocks themselves: O(1) at both ends and in the middle.

    first ── reused next ── … ── reused last ── (back to the head)
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._head = head = Block(-1)
        head.previous = head.next = head
        self._length = 0
        for block in blocks:
            self.push_last(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not None and block is not self._head:
            yield block
            block = block.next

    def push_first(self, block: Block) -> None:
        assert self._head.next is not None
        self._insert(block, self._head, self._head.next)

    def push_last(self, block: Block) -> None:
        assert self._head.previous is not None
        self._insert(block, self._head.previous, self._head)

    def pop_first(self) -> Block:
        """Takes the block that is to be reused next. The list must not be empty."""
        block = self._head.next
        assert block is not None
        assert block is not self._head, "pop from an empty free list"
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        assert block.previous is not None, f"block {block.id} is not in the list"
        assert block.next is not None
        block.previous.next, block.next.previous = block.next, block.previous
        block.previous = block.next = None
        self._length -= 1

    def _insert(self, block: Block, before: Block, after: Block) -> None:
        assert block.previous is None, f"block {block.id} is in the list already"
        block.previous, block.next = before, after
        before.next = after.previous = block
        self._length += 1

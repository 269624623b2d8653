"""Which blocks can be found by key, and by the beginning of what they hold."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from cache_node.free_list import Block
from cache_node.key_chain import BlockContent
from kvmesh.packing import pack_tokens

MAX_SIBLINGS = 16
"""Blocks after one parent that a partial match looks at, the newest first."""


class KeyIndex:
    """Blocks by key, one a key, and by parent key. Who holds them is not its concern."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, Block] = {}
        self._children: dict[bytes, dict[Block, None]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.values())

    def find(self, content: BlockContent) -> Block | None:
        """The block that holds `content`. Parent and tokens are compared: a collision is a miss."""
        block = self._blocks.get(content.key)
        if block is None or block.parent != content.parent or block.tokens != content.tokens:
            return None
        return block

    def find_key(self, key: bytes) -> Block | None:
        return self._blocks.get(key)

    def find_partial(self, parent: bytes, tokens: Sequence[int]) -> tuple[Block, int] | None:
        """The block after `parent` that shares the longest beginning with `tokens`, and how many
        tokens that is; None when no block shares one.
        """
        wanted = pack_tokens(tokens)
        siblings = islice(reversed(self._children.get(parent, {})), MAX_SIBLINGS)
        best = max(
            ((_shared(block.tokens, wanted), block) for block in siblings),
            key=_length,
            default=None,
        )
        return (best[1], best[0]) if best is not None and best[0] > 0 else None

    def add(self, block: Block, content: BlockContent) -> bool:
        """Gives `block` its key; False, and nothing changed, when another block has it already."""
        if block.key is not None or content.key in self._blocks:
            return False
        block.key, block.parent, block.tokens = content
        self._blocks[content.key] = block
        self._children.setdefault(content.parent, {})[block] = None
        return True

    def remove(self, block: Block) -> BlockContent:
        """Takes the key away; what the block held."""
        assert block.key is not None, f"block {block.id} has no key"
        content = BlockContent(block.key, block.parent, block.tokens)
        del self._blocks[block.key]
        siblings = self._children[block.parent]
        del siblings[block]
        if not siblings:
            del self._children[block.parent]
        block.key, block.parent, block.tokens = None, b"", b""
        return content

    def violations(self, blocks: Iterable[Block]) -> list[str]:
        """What does not agree with the keys that `blocks` carry."""
        keyed = {block.key: block for block in blocks if block.key is not None}
        listed = {block for siblings in self._children.values() for block in siblings}
        checks = {
            "key map and blocks disagree": self._blocks != keyed,
            "the index by parent and the keys disagree": listed != set(keyed.values()),
        }
        return [violation for violation, broken in checks.items() if broken]


def _shared(one: bytes, other: bytes) -> int:
    """Leading tokens that are equal; 4 bytes each."""
    if one.startswith(other):
        return len(other) // 4
    differing = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return differing // 4


def _length(match: tuple[int, Block]) -> int:
    return match[0]

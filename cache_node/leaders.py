"""Who computes which block right now, so that others need not compute it too."""

from collections.abc import Sequence as Seq

from cache_node.key_chain import BlockContent
from cache_node.sequence import Sequence


class Leaders:
    """The prompt blocks that running sequences are going to publish, by key. One leader a key."""

    def __init__(self) -> None:
        self._leaders: dict[bytes, Sequence] = {}
        self._keys: dict[Sequence, list[bytes]] = {}

    def lead(self, sequence: Sequence, contents: Seq[BlockContent]) -> None:
        """`sequence` computes `contents` from now on, those that nobody else computes."""
        keys = [content.key for content in contents if content.key not in self._leaders]
        self._leaders.update(dict.fromkeys(keys, sequence))
        if keys:
            self._keys[sequence] = keys

    def leave(self, sequence: Sequence) -> None:
        """It has published all of them, or will not. Idempotent."""
        for key in self._keys.pop(sequence, ()):
            del self._leaders[key]

    def of(self, content: BlockContent) -> Sequence | None:
        """Who is computing the block with `content`."""
        return self._leaders.get(content.key)

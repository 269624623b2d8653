"""Sequences that wait for blocks: by priority, then preempted ones, then by arrival."""

from bisect import insort
from collections.abc import Iterator
from itertools import count, islice

from cache_node.sequence import Sequence, State

_Entry = tuple[int, bool, float, int, Sequence]


class WaitingQueue:
    """An ordered list, the first to be admitted next. Pushed in the state it waits in."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._ticket = count()
        self.uncomputed_prompt = 0  # tokens, of all that wait
        self.tokens = 0  # that they have
        self.growth = 0  # tokens that they can come to beyond those, all samples together

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[-1] for entry in self._entries)

    def push(self, sequence: Sequence) -> None:
        request = sequence.request
        fresh = sequence.state is not State.PREEMPTED
        insort(
            self._entries,
            (-request.priority, fresh, request.arrival, next(self._ticket), sequence),
        )
        self._count(sequence, 1)

    def first(self, count: int) -> list[Sequence]:
        return [entry[-1] for entry in islice(self._entries, count)]

    def remove(self, sequence: Sequence) -> None:
        """Takes `sequence` out wherever it stands. It must be here. O(its place)."""
        place = next(i for i, entry in enumerate(self._entries) if entry[-1] is sequence)
        del self._entries[place]
        self._count(sequence, -1)

    def _count(self, sequence: Sequence, sign: int) -> None:
        self.uncomputed_prompt += sign * sequence.uncomputed_prompt
        self.tokens += sign * len(sequence.tokens)
        self.growth += sign * sequence.growth

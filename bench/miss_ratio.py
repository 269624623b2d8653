"""What share of a trace's prompts a prefix cache would hit, for every size of its pool at once.

One pass of LRU stack distances: Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for
storage hierarchies", IBM Systems Journal 9(2), 1970. A block is hit in every pool that is larger
than what has been used since its last use. A Fenwick tree counts that in O(log n).
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.trace import BLOCK_SIZE, TracedRequest


@dataclass(frozen=True, slots=True)
class MissRatioCurve:
    """Hits in blocks, as a line through points: `hits[i]` in a pool of `sizes[i]` blocks."""

    block_size: int
    prompt_tokens: int  # of the whole trace
    distinct: int  # blocks that differ: a pool of them forgets nothing
    sizes: Sequence[int]
    hits: Sequence[int]

    def hit_blocks(self, size: int) -> int:
        """That an LRU pool of `size` blocks finds, which holds nothing but what it has cached."""
        right = bisect_right(self.sizes, size)
        if right == len(self.sizes):
            return self.hits[-1]
        left = right - 1
        grown = (size - self.sizes[left]) * (self.hits[right] - self.hits[left])
        return self.hits[left] + grown // (self.sizes[right] - self.sizes[left])

    def hit_share(self, size: int) -> float:
        """Of all prompt tokens."""
        return self.hit_blocks(size) * self.block_size / max(1, self.prompt_tokens)

    def size_for(self, share: float) -> int:
        """The smallest pool that hits `share` of what one without end hits."""
        wanted = -int(-share * self.hits[-1] // 1)
        low, high = 0, self.sizes[-1]
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.hit_blocks(middle) >= wanted else (middle + 1, high)
        return low


def miss_ratio_curve(requests: Sequence[TracedRequest], block_size: int) -> MissRatioCurve:
    """Each request looks all its prompt's blocks up, then uses them, the first one last: so a block
    is never there without those before it. Raises ValueError where the trace tells no blocks.

    KV of answers, and what running requests hold, is not counted: a pool needs room for it too.
    """
    if not any(request.blocks for request in requests):
        raise ValueError("trace: tells nothing of what prompts share; use one in Mooncake's format")
    recency = _Recency(sum(len(request.blocks) for request in requests))
    slopes: dict[int, int] = {0: 0}  # by pool size: hits that one more block brings
    for request in requests:
        chunks = list(zip(request.blocks, _weights(request, block_size), strict=True))
        # The last token of a prompt is always computed, and so is the block that it fills.
        computed = request.prompt_tokens % block_size == 0
        for place, (chunk, weight) in enumerate(chunks, 1):
            newer = recency.newer_than(chunk)
            wanted = weight - (computed and place == len(chunks))
            if newer is not None and wanted:
                slopes[newer] = slopes.get(newer, 0) + 1
                slopes[newer + wanted] = slopes.get(newer + wanted, 0) - 1
        for chunk, weight in reversed(chunks):
            recency.use(chunk, weight)
    sizes, hits = _integrate(slopes)
    tokens = sum(request.prompt_tokens for request in requests)
    return MissRatioCurve(block_size, tokens, recency.total, sizes, hits)


def _weights(request: TracedRequest, block_size: int) -> Iterable[int]:
    """Blocks of a node that end in each of the trace's blocks."""
    ends = [
        min(request.prompt_tokens, BLOCK_SIZE * (i + 1)) // block_size
        for i in range(len(request.blocks))
    ]
    return (end - start for start, end in zip([0, *ends], ends, strict=False))


def _integrate(slopes: dict[int, int]) -> tuple[list[int], list[int]]:
    sizes, hits, slope, last = sorted(slopes), [], 0, 0
    found = 0
    for size in sizes:
        found += slope * (size - last)
        hits.append(found)
        slope, last = slope + slopes[size], size
    return sizes, hits


class _Recency:
    """What was used, by time: a Fenwick tree over the times of last uses."""

    def __init__(self, uses: int) -> None:
        self.total = 0  # weight of all that differs
        self._tree = [0] * (uses + 1)
        self._last: dict[int, tuple[int, int]] = {}  # chunk: time from 1, weight
        self._now = 0

    def newer_than(self, chunk: int) -> int | None:
        """Weight of all that was used after it; None where it never was."""
        if chunk not in self._last:
            return None
        time, older = self._last[chunk][0], 0
        while time:
            older += self._tree[time]
            time &= time - 1
        return self.total - older

    def use(self, chunk: int, weight: int) -> None:
        if chunk in self._last:
            self._add(self._last[chunk][0], -self._last[chunk][1])
        self._now += 1
        self._last[chunk] = (self._now, weight)
        self._add(self._now, weight)

    def _add(self, time: int, weight: int) -> None:
        self.total += weight
        while time < len(self._tree):
            self._tree[time] += weight
            time += time & -time

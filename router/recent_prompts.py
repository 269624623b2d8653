"""What was routed a moment ago and will be cached where it went, though no event says so yet."""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

LIFE = 2.0  # seconds; by then events tell what became of a prompt
MOST = 4096  # prompts that are remembered


class Holder(NamedTuple):
    """A node in one of its lives: what an older one was sent counts for nothing."""

    node: str
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    holder: Holder
    keys: Sequence[bytes]
    expires: float


class RecentPrompts:
    """Speculative entries of the index, for a short life. A hint like the rest of it.

    A prompt is filed under its keys at 1, 2, 4, 8, … blocks, each with the last prompt of a holder
    that had this key. As keys are a chain, two prompts that share one share all before it; how many
    after it, a search tells. So a prompt costs its logarithm to file and to match; one that was
    filed over by another with a shorter common prefix is found by up to half.

        note(holder, keys) ──▶ filed ──LIFE, or MOST newer ones──▶ forgotten
    """

    def __init__(self, clock: Callable[[], float], life: float = LIFE) -> None:
        self._clock = clock
        self._life = life
        self._filed: dict[bytes, dict[Holder, _Sent]] = {}
        self._order: deque[_Sent] = deque()

    def note(self, holder: Holder, keys: Sequence[bytes]) -> None:
        """A request with these block keys was sent there now."""
        now = self._clock()
        self._expire(now)
        if not keys:
            return
        sent = _Sent(holder, keys, now + self._life)
        self._order.append(sent)
        for place in _places(len(keys)):
            self._filed.setdefault(keys[place], {})[holder] = sent

    def withdraw(self, holder: Holder, keys: Sequence[bytes]) -> None:
        """The request did not stay there after all."""
        for place in _places(len(keys)):
            sent = self._filed.get(keys[place], {}).get(holder)
            if sent is not None and sent.keys == keys:
                self._forget(sent)

    def match(self, keys: Sequence[bytes]) -> dict[Holder, int]:
        """Holder → how many leading blocks of a prompt it was sent lately."""
        self._expire(self._clock())
        found: dict[Holder, int] = {}
        for place in reversed(_places(len(keys))):
            for holder, sent in self._filed.get(keys[place], {}).items():
                if holder not in found:
                    found[holder] = _shared(keys, sent.keys, place + 1)
        return found

    def __len__(self) -> int:
        return len(self._order)

    def _expire(self, now: float) -> None:
        order = self._order
        while order and (order[0].expires <= now or len(order) > MOST):
            self._forget(order.popleft())

    def _forget(self, sent: _Sent) -> None:
        for place in _places(len(sent.keys)):
            filed = self._filed.get(sent.keys[place], {})
            if filed.get(sent.holder) is sent:
                del filed[sent.holder]
                if not filed:
                    del self._filed[sent.keys[place]]


def _places(count: int) -> list[int]:
    """Of the keys at 1, 2, 4, 8, … blocks."""
    return [(1 << power) - 1 for power in range(count.bit_length())]


def _shared(keys: Sequence[bytes], others: Sequence[bytes], known: int) -> int:
    """How many leading keys two chains share, at least `known`."""
    most = min(len(keys), len(others))
    return bisect_left(range(most), True, known, key=lambda place: keys[place] != others[place])

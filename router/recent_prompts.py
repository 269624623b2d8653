"""What was routed a moment ago and will be cached where it went, though no event says so yet."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prefix_index.keys import KEY_BYTES

LIFE = 2.0  # seconds; by then events tell what became of a prompt
MOST = 4096  # prompts that are remembered
STEP = 2  # a prompt is filed at 1, 4, 16, … blocks: powers of two, so many apart


class Sent(NamedTuple):
    """`blocks` leading ones of a prompt went to a node in this one of its lives."""

    epoch: int
    blocks: int


@dataclass(slots=True, eq=False)
class _Prompt:
    node: str
    epoch: int
    filed: tuple[bytes, ...]  # keys under which it is
    digits: bytes  # see _digits
    expires: float


class RecentPrompts:
    """Speculative entries of the index, for a short life. A hint like the rest of it.

    A prompt is filed under its keys at 1, 4, 16, 64, … blocks, each with the last prompt of a node
    that had this key. As keys are a chain, two prompts that share one share all before it. How many
    they share after it, the first bytes of the other keys tell: one block too many once in 256
    times. One that was filed over by another with a shorter common prefix is found by a quarter.

        note(node, epoch, keys) ──▶ filed ──LIFE, or MOST newer ones──▶ forgotten
    """

    def __init__(self, clock: Callable[[], float], life: float = LIFE) -> None:
        self._clock = clock
        self._life = life
        self._filed: dict[bytes, dict[str, _Prompt]] = {}
        self._order: deque[_Prompt] = deque()

    def note(self, node: str, epoch: int, keys: Sequence[bytes]) -> None:
        """A request with these block keys was sent there now."""
        now = self._clock()
        self._expire(now)
        if not keys:
            return
        filed = tuple(keys[place] for place in _places(len(keys)))
        prompt = _Prompt(node, epoch, filed, _digits(keys), now + self._life)
        self._order.append(prompt)
        for key in filed:
            if key in self._filed:
                self._filed[key][node] = prompt
            else:
                self._filed[key] = {node: prompt}

    def withdraw(self, node: str, keys: Sequence[bytes]) -> None:
        """The request did not stay there after all."""
        for place in _places(len(keys)):
            prompt = self._filed.get(keys[place], {}).get(node)
            if prompt is not None and prompt.digits == _digits(keys):
                self._forget(prompt)

    def match(self, keys: Sequence[bytes]) -> dict[str, Sent]:
        """Node → what it was sent of a prompt lately. Of an older life of a node it counts for
        nothing: who asks compares the epoch.
        """
        now = self._clock()
        found: dict[str, Sent] = {}
        digits = b""
        for place in reversed(_places(len(keys))):
            filed = self._filed.get(keys[place])
            if filed is None or filed.keys() <= found.keys():
                continue
            digits = digits or _digits(keys)
            for node, prompt in filed.items():
                if node not in found and prompt.expires > now:
                    found[node] = Sent(prompt.epoch, _shared(digits, prompt.digits, place + 1))
        return found

    def __len__(self) -> int:
        return len(self._order)

    def _expire(self, now: float) -> None:
        order = self._order
        while order and (order[0].expires <= now or len(order) > MOST):
            self._forget(order.popleft())

    def _forget(self, prompt: _Prompt) -> None:
        for key in prompt.filed:
            filed = self._filed.get(key)
            if filed is not None and filed.get(prompt.node) is prompt:
                del filed[prompt.node]
                if not filed:
                    del self._filed[key]


def _places(count: int) -> list[int]:
    """Of the keys at 1, 4, 16, 64, … blocks."""
    return [(1 << power) - 1 for power in range(0, count.bit_length(), STEP)]


def _digits(keys: Sequence[bytes]) -> bytes:
    """The first byte of each key. Small: to keep and free whole chains of 4 KB all the time costs
    the allocator more than all else here. A join and a stride take a fifth of a loop's time.
    """
    return b"".join(keys)[::KEY_BYTES]


def _shared(digits: bytes, others: bytes, known: int) -> int:
    """How many leading ones are the same, at least `known`."""
    most = min(len(digits), len(others))
    if digits[:most] == others[:most]:
        return most  # a conversation goes on
    difference = int.from_bytes(digits[:most]) ^ int.from_bytes(others[:most])
    return max(known, most - (difference.bit_length() + 7) // 8)

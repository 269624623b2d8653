"""What was routed a moment ago and will be cached where it went, though no event says so yet."""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from prefix_index.keys import KEY_BYTES

LIFE = 2.0  # seconds; by then events tell what became of a prompt
MOST = 4096  # prompts that are remembered at most
STEP = 2  # a prompt is filed at 1, 4, 16, … blocks: powers of two, so many apart


class Sent(NamedTuple):
    """`blocks` leading ones of a prompt went to a node in this one of its lives."""

    epoch: int
    blocks: int


class _Prompt(NamedTuple):
    node: str
    epoch: int  # of the node
    digits: bytes  # the first byte of each key, see RecentPrompts._digits
    expires: float


_Filed = dict[bytes, _Prompt | dict[str, _Prompt]]
"""By key; by node too where several have had it. With a dict for each key, which is most of the
memory, a lease takes 1.04 times as long.
"""


class RecentPrompts:
    """Speculative entries of the index, for a short life. A hint like the rest of it.

    A prompt is filed under its keys at 1, 4, 16, 64, … blocks, each with the last prompt of a node
    that had this key. As keys are a chain, two prompts that share one share all before it. How many
    they share after it, the first bytes of the other keys tell: one block too many once in 256
    times. One that was filed over by another with a shorter common prefix is found by a quarter.

        note(node, epoch, keys) ──▶ newer ──LIFE, or MOST / 2 more──▶ older ──the same──▶ forgotten

    What is forgotten is so all at once. One by one, each prompt's memory is fetched again for it: a
    lease takes 1.05 times as long.
    """

    def __init__(self, clock: Callable[[], float], life: float = LIFE) -> None:
        self._clock = clock
        self._life = life
        self._newer: _Filed = {}
        self._older: _Filed = {}
        self._noted = [0, 0]  # prompts: newer, older
        self._turns = clock() + life
        self._last: tuple[Sequence[bytes], bytes] = (), b""  # keys, and their digits

    def note(self, node: str, epoch: int, keys: Sequence[bytes]) -> None:
        """A request with these block keys was sent there now."""
        if not keys:
            return
        now = self._clock()
        if now >= self._turns or self._noted[0] >= MOST // 2:
            self._turn(now)
        self._noted[0] += 1
        prompt = _Prompt(node, epoch, self._digits(keys), now + self._life)
        filed = self._newer
        for place in _places(len(keys)):
            key = keys[place]
            there = filed.setdefault(key, prompt)
            if isinstance(there, dict):
                there[node] = prompt
            elif there is not prompt:
                filed[key] = prompt if there.node == node else {there.node: there, node: prompt}

    def withdraw(self, node: str, keys: Sequence[bytes]) -> None:
        """The request did not stay there after all."""
        digits = self._digits(keys)
        for filed in (self._newer, self._older):
            for place in _places(len(keys)):
                there = filed.get(keys[place])
                prompt = there.get(node) if isinstance(there, dict) else there
                if prompt is not None and (prompt.node, prompt.digits) == (node, digits):
                    _remove(filed, keys[place], node)

    def match(self, keys: Sequence[bytes]) -> dict[str, Sent]:
        """Node → what it was sent of a prompt lately. Of an older life of a node it counts for
        nothing: who asks compares the epoch.
        """
        newer, older = self._newer, self._older
        if not keys or (keys[0] not in newer and keys[0] not in older):
            return {}
        now, digits = self._clock(), self._digits(keys)
        found: dict[str, Sent] = {}
        for place in reversed(_places(len(keys))):
            for filed in (newer, older):
                there = filed.get(keys[place])
                if there is None or (isinstance(there, dict) and there.keys() <= found.keys()):
                    continue
                for node, epoch, others, expires in _prompts(there):
                    if node not in found and expires > now:
                        found[node] = Sent(epoch, _shared(digits, others, place + 1))
        return found

    def __len__(self) -> int:
        return sum(self._noted)

    def _digits(self, keys: Sequence[bytes]) -> bytes:
        """The first byte of each key. Small: to keep and free whole chains of 4 KB all the time
        costs the allocator more than all else here. A join and a stride take a fifth of a loop's
        time. Who notes a prompt has mostly just looked for it.
        """
        known, digits = self._last
        if known is not keys:
            digits = b"".join(keys)[::KEY_BYTES]
            self._last = keys, digits
        return digits

    def _turn(self, now: float) -> None:
        """If all of the newer ones have expired, none of them is kept."""
        current = now < self._turns + self._life
        self._older = self._newer if current else {}
        self._noted = [0, self._noted[0] if current else 0]
        self._newer = {}
        self._turns = now + self._life


_PLACES = [(1 << power) - 1 for power in range(0, 64, STEP)]


def _places(count: int) -> list[int]:
    """Of the keys at 1, 4, 16, 64, … blocks."""
    return _PLACES[: (count.bit_length() + STEP - 1) // STEP]


def _prompts(there: _Prompt | dict[str, _Prompt]) -> Collection[_Prompt]:
    return there.values() if isinstance(there, dict) else (there,)


def _remove(filed: _Filed, key: bytes, node: str) -> None:
    there = filed[key]
    if isinstance(there, dict):
        del there[node]
    else:
        del filed[key]


def _shared(digits: bytes, others: bytes, known: int) -> int:
    """How many leading ones are the same, at least `known`."""
    most = min(len(digits), len(others))
    if digits[:most] == others[:most]:
        return most  # a conversation goes on
    difference = int.from_bytes(digits[:most]) ^ int.from_bytes(others[:most])
    return max(known, most - (difference.bit_length() + 7) // 8)

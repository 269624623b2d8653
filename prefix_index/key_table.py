"""Which holders have which keys: one dictionary for all, so that a look-up is one probe a block."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from kvmesh.v1 import cache_node_pb2
from prefix_index.events import Tier

SWEEP_MINIMUM = 256  # keys that a call of `sweep` visits at least

# Bits of a slot's pair.
_GPU, _CPU = 0b01, 0b10
_BIT = {cache_node_pb2.TIER_GPU: _GPU, cache_node_pb2.TIER_CPU: _CPU}


class Match(NamedTuple):
    """How many leading blocks of a prompt a node holds. A block in both tiers counts as GPU."""

    gpu_blocks: int
    cpu_blocks: int

    @property
    def blocks(self) -> int:
        return self.gpu_blocks + self.cpu_blocks


class Slot:
    """One holder's place in the table: bits 2·index (GPU) and 2·index + 1 (CPU) of every mask."""

    __slots__ = ("index", "size")

    def __init__(self, index: int) -> None:
        self.index = index
        self.size = 0  # keys held, in any tier


class KeyTable:
    """key → mask of two bits a slot.

        open ──▶ live ──retire──▶ retired ──sweep──▶ free ──▶ open

    Retiring takes no time, however much the slot holds: its bits are masked out of every answer
    at once, and cleared little by little by `sweep`. A slot is opened again only when no mask has
    its bits.
    """

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._same: dict[int, int] = {}  # equal masks are one object: smaller, and equal at a look
        self._live = 0  # the GPU bit of each live slot
        self._holders: dict[int, str] = {}  # GPU bit of a live slot → its holder
        self._slots = 0
        self._free: list[int] = []
        self._retired: list[int] = []
        self._cleaning: list[int] = []  # retired slots whose bits go in the present sweep
        self._visiting: list[bytes] = []  # keys that the present sweep has still to visit

    def __len__(self) -> int:
        """Keys in the table, retired ones that are not swept yet included."""
        return len(self._masks)

    def open(self, holder: str) -> Slot:
        """An empty slot for the keys of `holder`."""
        if self._free:
            index = self._free.pop()
        else:
            index, self._slots = self._slots, self._slots + 1
        self._live |= 1 << 2 * index
        self._holders[1 << 2 * index] = holder
        return Slot(index)

    def retire(self, slot: Slot) -> None:
        """Forgets all that the slot holds. The slot must not be used again."""
        self._live &= ~(1 << 2 * slot.index)
        del self._holders[1 << 2 * slot.index]
        self._retired.append(slot.index)
        slot.size = 0

    def store(self, slot: Slot, tier: Tier, keys: Iterable[bytes]) -> None:
        shift = 2 * slot.index
        bit, pair = _BIT[tier] << shift, 0b11 << shift
        masks, same, added = self._masks, self._same, 0
        for key in keys:
            mask = masks.get(key, 0)
            added += not mask & pair
            mask |= bit
            masks[key] = same.setdefault(mask, mask)
        slot.size += added

    def remove(self, slot: Slot, tier: Tier, keys: Iterable[bytes]) -> None:
        """Keys that the slot does not hold are passed over."""
        shift = 2 * slot.index
        bit, pair = _BIT[tier] << shift, 0b11 << shift
        masks, same = self._masks, self._same
        for key in keys:
            mask = masks.get(key, 0)
            if not mask & bit:
                continue
            mask ^= bit
            slot.size -= not mask & pair
            if mask:
                masks[key] = same.setdefault(mask, mask)
            else:
                del masks[key]

    def match(self, keys: Sequence[bytes]) -> dict[str, Match]:
        """Holder → its longest leading run of `keys`; without those that lack the first key."""
        if not keys or not (first := self._masks.get(keys[0], 0)):
            return {}
        run = self._look_up(keys)
        alive = (first | first >> 1) & self._live
        ends: list[tuple[int, int]] = []  # (slots, the first block that they do not hold)
        offloaded: dict[int, int] = {}  # mask → slots that hold it in the CPU tier only
        # Neighbours mostly share one mask, so few decide. One that was seen before cannot change
        # anything: the first place of a mask that does is its only one so far.
        at = 0
        for mask in _changes(run):
            held = (mask | mask >> 1) & alive if mask else 0
            if held != alive:
                at = run.index(mask, at)
                ends.append((alive ^ held, at))
                if not (alive := held):
                    break
            if mask and (only := mask >> 1 & ~mask & alive):
                offloaded.setdefault(mask, only)
        ends.append((alive, len(run)))
        return self._matches(run, ends, offloaded)

    def _look_up(self, keys: Sequence[bytes]) -> Sequence[int | None]:
        """The masks of leading keys, None for one that nobody holds: all that a run can cover."""
        masks = self._masks
        if keys[-1] not in masks:
            # Mostly the first that nobody holds, and always one that nobody holds: a search ends
            # at a key that it has seen. So holes before it are not passed over.
            keys = keys[: bisect_left(keys, True, key=lambda key: key not in masks)]
        if len(keys) > 1:
            try:
                return itemgetter(*keys)(masks)  # type: ignore[no-any-return]  # 0.6 of map's time
            except KeyError:
                pass  # a hole
        return tuple(map(masks.get, keys))

    def _matches(
        self,
        run: Sequence[int | None],
        ends: list[tuple[int, int]],
        offloaded: dict[int, int],
    ) -> dict[str, Match]:
        found = {}
        for ended, length in ends:
            slots, match = ended, Match(length, 0)
            tally = Counter(run[:length]) if offloaded else None
            while slots:
                bit = slots & -slots
                slots ^= bit
                if tally is not None:
                    cpu = sum(tally[mask] for mask, only in offloaded.items() if only & bit)
                    match = Match(length - cpu, cpu)
                found[self._holders[bit]] = match
        return found

    def sweep(self, budget: int) -> None:
        """Clears retired bits from `budget` keys, or SWEEP_MINIMUM; call it with every change."""
        if not self._visiting and not self._start_sweep():
            return
        masks, same, live = self._masks, self._same, self._live | self._live << 1
        for _ in range(min(max(budget, SWEEP_MINIMUM), len(self._visiting))):
            key = self._visiting.pop()
            if mask := masks.get(key, 0) & live:
                masks[key] = same.setdefault(mask, mask)
            else:
                masks.pop(key, None)
        if not self._visiting:
            self._free += self._cleaning
            self._cleaning = []

    def _start_sweep(self) -> bool:
        if not self._retired:
            return False
        self._cleaning, self._retired = self._retired, []
        self._visiting = list(self._masks)
        self._same = {}  # what no key has any more goes
        return True


def _changes(run: Sequence[int | None]) -> Iterable[int | None]:
    """The masks of a run without those that equal the one before."""
    if run.count(run[0]) == len(run):
        return run[:1]
    return [mask for mask, _ in groupby(run)]

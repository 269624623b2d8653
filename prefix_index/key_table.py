"""Which holders have which keys: one dictionary for all, so that a look-up is one probe a block."""

from collections.abc import Iterable, Sequence
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
        masks, added = self._masks, 0
        for key in keys:
            mask = masks.get(key, 0)
            added += not mask & pair
            masks[key] = mask | bit
        slot.size += added

    def remove(self, slot: Slot, tier: Tier, keys: Iterable[bytes]) -> None:
        """Keys that the slot does not hold are passed over."""
        shift = 2 * slot.index
        bit, pair = _BIT[tier] << shift, 0b11 << shift
        masks = self._masks
        for key in keys:
            mask = masks.get(key, 0)
            if not mask & bit:
                continue
            mask ^= bit
            slot.size -= not mask & pair
            if mask:
                masks[key] = mask
            else:
                del masks[key]

    def match(self, keys: Sequence[bytes]) -> dict[str, Match]:
        """Holder → its longest leading run of `keys`; without those that lack the first key."""
        if not keys or not (first := self._masks.get(keys[0], 0)):
            return {}
        masks = list(map(self._masks.get, keys))
        found: dict[str, Match] = {}
        alive = (first | first >> 1) & self._live
        offloaded: list[tuple[int, int]] = []  # (mask, slots that hold it in the CPU tier only)
        # Neighbours mostly share one mask: the few distinct ones, in order of appearance, decide.
        at = 0
        for mask in dict.fromkeys(masks):
            held = (mask | mask >> 1) & alive if mask else 0
            if held != alive:
                at = masks.index(mask, at)
                found |= self._end_runs(alive ^ held, masks[:at], offloaded)
                if not (alive := held):
                    return found
            if mask and (only := mask >> 1 & ~mask & alive):
                offloaded.append((mask, only))
        return found | self._end_runs(alive, masks, offloaded)

    def _end_runs(
        self, ended: int, run: list[int | None], offloaded: list[tuple[int, int]]
    ) -> dict[str, Match]:
        """The matches of the slots in `ended`, which all hold the blocks of `run`."""
        on_gpu, found = Match(len(run), 0), {}
        counts = [(only, run.count(mask)) for mask, only in offloaded]
        while ended:
            bit = ended & -ended
            ended ^= bit
            cpu = sum(count for only, count in counts if only & bit) if counts else 0
            found[self._holders[bit]] = Match(len(run) - cpu, cpu) if cpu else on_gpu
        return found

    def sweep(self, budget: int) -> None:
        """Clears retired bits from `budget` keys, or SWEEP_MINIMUM; call it with every change."""
        if not self._visiting and not self._start_sweep():
            return
        masks, live = self._masks, self._live | self._live << 1
        for _ in range(min(max(budget, SWEEP_MINIMUM), len(self._visiting))):
            key = self._visiting.pop()
            if mask := masks.get(key, 0) & live:
                masks[key] = mask
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
        return True

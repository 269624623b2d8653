"""Prefixes that an operator wants to stay in the cache: explicit, bounded, with an end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cache_node.block_pool import BlockPool
from cache_node.step_plan import BlockId

MAX_SHARE = 0.5
"""Of the pool that pins may hold, however many there are."""


@dataclass(frozen=True, slots=True)
class Pin:
    """Owns one reference on each of its blocks."""

    blocks: Sequence[BlockId]
    priority: int
    expires: float | None  # seconds of the scheduler's clock


class Pins:
    """By name. A pin yields to one of higher priority, and to a request that fits nowhere else."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._pins: dict[str, Pin] = {}

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def tables(self) -> Iterator[Sequence[BlockId]]:
        return (pin.blocks for pin in self._pins.values())

    @property
    def room(self) -> int:
        """Blocks that pins may hold in all."""
        return int(MAX_SHARE * self._pool.num_blocks)

    def pin(
        self, name: str, blocks: Sequence[BlockId], priority: int, expires: float | None
    ) -> bool:
        """Pins cached blocks under `name`, in place of what that name held. Pins of lower priority
        make room. False, and nothing changed, when the room is not enough.
        """
        staying = sum(
            len(pin.blocks)
            for key, pin in self._pins.items()
            if pin.priority >= priority and key != name
        )
        if len(blocks) + staying > self.room:
            return False
        table = self._pool.allocate(0, blocks)
        assert table is not None, "references on blocks that are there cost nothing"
        self.unpin(name)
        while len(table) + sum(len(pin.blocks) for pin in self._pins.values()) > self.room:
            self.yield_one()
        self._pins[name] = Pin(table, priority, expires)
        return True

    def pin_keys(
        self, name: str, keys: Sequence[bytes], priority: int, expires: float | None
    ) -> int:
        """Pins the longest leading run of `keys` that is cached. How many blocks that is; 0 when
        the room is not enough.
        """
        hits: list[BlockId] = []
        for key in keys:
            block = self._pool.find_key(key)
            if block is None:
                break
            hits.append(block)
        return len(hits) if hits and self.pin(name, hits, priority, expires) else 0

    def unpin(self, name: str) -> bool:
        """Idempotent; whether there was such a pin."""
        pin = self._pins.pop(name, None)
        if pin is not None:
            self._pool.free(pin.blocks)
        return pin is not None

    def clear(self) -> None:
        """Lets all go."""
        for name in list(self._pins):
            self.unpin(name)

    def expire(self, now: float) -> None:
        gone = [name for name, p in self._pins.items() if p.expires is not None and p.expires < now]
        for name in gone:
            self.unpin(name)

    def yield_one(self) -> bool:
        """Lets the pin of the lowest priority go; whether there was one."""
        if not self._pins:
            return False
        return self.unpin(min(self._pins, key=lambda name: self._pins[name].priority))

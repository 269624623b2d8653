"""What happens to a node's set of cached blocks, and its packed form.

Packed: a version byte, then runs of equal events: kind (1 byte) ‖ tier (1 byte) ‖ count (uint32
LE) ‖ count keys of 16 bytes. The order of runs is the order of events. `Cleared` is a run of kind
3, tier 0 and no keys.
"""

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple, TypeAlias

from kvmesh.v1 import cache_node_pb2
from prefix_index.keys import KEY_BYTES

VERSION = 1
Tier: TypeAlias = cache_node_pb2.Tier.ValueType
TIERS = (cache_node_pb2.TIER_GPU, cache_node_pb2.TIER_CPU)

_HEAD = struct.Struct("<BBI")


class Kind(IntEnum):
    STORED = 1
    REMOVED = 2
    CLEARED = 3


@dataclass(frozen=True, slots=True)
class Stored:
    """The block with `key` can be hit in `tier` from now on."""

    key: bytes
    tier: Tier


@dataclass(frozen=True, slots=True)
class Removed:
    """The last copy of the block with `key` left `tier`."""

    key: bytes
    tier: Tier


@dataclass(frozen=True, slots=True)
class Cleared:
    """All blocks of all tiers are gone."""


Event = Stored | Removed | Cleared


class Run(NamedTuple):
    """Neighbouring events of one kind. `tier` is None and `keys` empty for CLEARED."""

    kind: Kind
    tier: Tier | None
    keys: list[bytes]


def pack(events: Iterable[Event]) -> bytes:
    """Raises ValueError for a key that is not 16 bytes, or an unknown tier."""
    packed = [bytes((VERSION,))]
    for (kind, tier), run in groupby(events, _kind_and_tier):
        if tier is None:
            packed += [_pack_run(kind, None, ()) for _ in run]
        else:
            keys = [event.key for event in run if not isinstance(event, Cleared)]
            packed.append(_pack_run(kind, tier, keys))
    return b"".join(packed)


def pack_held(held: Mapping[Tier, Collection[bytes]]) -> bytes:
    """Packs a whole state, tier → its keys, as `Stored` events, without making them one by one."""
    runs = (_pack_run(Kind.STORED, tier, keys) for tier, keys in held.items() if keys)
    return bytes((VERSION,)) + b"".join(runs)


def unpack(packed: bytes) -> list[Event]:
    """Raises ValueError for anything that `pack` does not write."""
    return [event for run in runs(packed) for event in _events(run)]


def runs(packed: bytes) -> list[Run]:
    """`unpack` by runs, for who applies many events at once. Raises ValueError likewise."""
    if packed[:1] != bytes((VERSION,)):
        raise ValueError(f"packed events: version byte must be {VERSION}, starts {packed[:1]!r}")
    return list(_runs(packed))


def _runs(packed: bytes) -> Iterator[Run]:
    at = 1
    while at < len(packed):
        if at + _HEAD.size > len(packed):
            raise ValueError(f"packed events: cut inside a run's head at byte {at}")
        number, tier, count = _HEAD.unpack_from(packed, at)
        kind = _check_head(number, tier, count, at)
        at += _HEAD.size
        end = at + count * KEY_BYTES
        if end > len(packed):
            raise ValueError(
                f"packed events: {count} keys at byte {at} end after byte {len(packed)}"
            )
        yield Run(
            kind, tier or None, [packed[i : i + KEY_BYTES] for i in range(at, end, KEY_BYTES)]
        )
        at = end


def _check_head(number: int, tier: Tier, count: int, at: int) -> Kind:
    if number == Kind.CLEARED and tier == 0 and count == 0:
        return Kind.CLEARED
    if number not in (Kind.STORED, Kind.REMOVED) or tier not in TIERS or count == 0:
        raise ValueError(
            f"packed events: no such run at byte {at}: kind {number}, tier {tier}, {count} keys"
        )
    return Kind(number)


def _pack_run(kind: Kind, tier: Tier | None, keys: Collection[bytes]) -> bytes:
    if kind is not Kind.CLEARED and tier not in TIERS:
        raise ValueError(f"tier: must be one of {TIERS}, is {tier}")
    if any(len(key) != KEY_BYTES for key in keys):
        raise ValueError(f"key: must be {KEY_BYTES} bytes")
    return _HEAD.pack(kind, tier or 0, len(keys)) + b"".join(keys)


def _kind_and_tier(event: Event) -> tuple[Kind, Tier | None]:
    match event:
        case Stored(_, tier):
            return Kind.STORED, tier
        case Removed(_, tier):
            return Kind.REMOVED, tier
        case Cleared():
            return Kind.CLEARED, None


def _events(run: Run) -> Iterator[Event]:
    if run.tier is None:
        yield Cleared()
        return
    make = Stored if run.kind is Kind.STORED else Removed
    for key in run.keys:
        yield make(key, run.tier)

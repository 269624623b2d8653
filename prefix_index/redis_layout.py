"""How the index lies in Redis, as publisher and feed both know it.

    {group:shard}:events              STREAM  what happened on the shard's nodes, trimmed
    {group:shard}:held:node:epoch     HASH    tier ‖ block key → "", what the node holds; its fields
                                              `sequence` and `generation` say which state that is

Both are written in one MULTI per batch. All keys of a shard share a hash tag, so that they lie in
one slot of a Redis Cluster. A block may lie in both tiers, so the tier is a part of the field.

The generation counts the snapshots that a publisher wrote in its epoch. A HASH without one is a
torso: Redis came back empty and a delta fell into nothing. An entry with a later generation than
a reader's says that the HASH was replaced.
"""

import struct
from typing import NamedTuple
from zlib import crc32

from redis.typing import EncodableT, FieldT

from prefix_index.batch import Batch
from prefix_index.events import TIERS, Tier
from prefix_index.keys import KEY_BYTES

SEQUENCE = b"sequence"
GENERATION = b"generation"

Fields = dict[FieldT, EncodableT]  # of a HASH or of a stream's entry, as redis-py takes them

_HEAD = struct.Struct("<QQQQ")  # epoch, generation, base, sequence
_TIER_OF: dict[int, Tier] = {int(tier): tier for tier in TIERS}
_NODE, _NUMBERS, _PACKED = b"n", b"h", b"p"


class Entry(NamedTuple):
    """One entry of a shard's stream: a delta of one node, or only how far the node is."""

    node: str
    epoch: int
    generation: int
    batch: Batch

    def to_fields(self) -> Fields:
        batch = self.batch
        numbers = _HEAD.pack(self.epoch, self.generation, batch.base, batch.sequence)
        return {_NODE: self.node.encode(), _NUMBERS: numbers, _PACKED: batch.packed}

    @classmethod
    def from_fields(cls, fields: dict[bytes, bytes]) -> "Entry":
        """Raises ValueError for an entry that `to_fields` does not write."""
        try:
            epoch, generation, base, sequence = _HEAD.unpack(fields[_NUMBERS])
            batch = Batch(base, sequence, False, fields[_PACKED])
            return cls(fields[_NODE].decode(), epoch, generation, batch)
        except (KeyError, struct.error) as error:
            raise ValueError(f"stream entry: not one of ours: {error!r}") from error


def shard_of(node: str, shards: int) -> int:
    """The same in every process."""
    return crc32(node.encode()) % shards


def stream_key(group: str, shard: int) -> bytes:
    return f"{{{group}:{shard}}}:events".encode()


def held_key(group: str, shard: int, node: str, epoch: int) -> bytes:
    return f"{{{group}:{shard}}}:held:{node}:{epoch}".encode()


def held_field(tier: Tier, key: bytes) -> bytes:
    return bytes((tier,)) + key


def parse_held_field(field: bytes) -> tuple[Tier, bytes] | None:
    """Tier and block key; None for the fields that are not blocks."""
    tier = _TIER_OF.get(field[0])
    return (tier, field[1:]) if tier and len(field) == 1 + KEY_BYTES else None

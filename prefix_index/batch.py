"""One message of block events: how one state of a node's cache becomes a later one."""

from dataclasses import dataclass

from kvmesh.v1 import cache_node_pb2
from prefix_index.events import Event, unpack


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that lead from the node's state number `base` to its state number `sequence`.

    The node's EventLog counts states from 0 (nothing cached), one an engine step that changed
    something. The number is the node's, the same on every feed and for every subscriber; an epoch
    starts again.

    Who holds any state from `base` on may apply the batch: the last event of a key decides, so
    that events seen before do no harm. Who holds an earlier state has a gap. A batch without
    events, `base == sequence`, only states how far the node is. A `snapshot` stands for the whole
    state: forget everything before.
    """

    base: int
    sequence: int
    snapshot: bool
    packed: bytes  # format in events.py

    @property
    def events(self) -> list[Event]:
        """The events one by one. Raises ValueError when `packed` is malformed."""
        return unpack(self.packed)

    def to_proto(self) -> cache_node_pb2.BlockEvents:
        return cache_node_pb2.BlockEvents(
            base_sequence=self.base,
            sequence=self.sequence,
            snapshot=self.snapshot,
            packed=self.packed,
        )

    @classmethod
    def from_proto(cls, message: cache_node_pb2.BlockEvents) -> "Batch":
        return cls(message.base_sequence, message.sequence, message.snapshot, message.packed)

"""The router's picture of what every node has cached: look-ups never leave the process."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvmesh.v1 import fleet_pb2
from prefix_index.batch import Batch
from prefix_index.events import Kind, Run, runs
from prefix_index.key_table import KeyTable, Match, Slot

__all__ = ["Match", "Mirror"]


@dataclass(slots=True)
class _Node:
    epoch: int
    slot: Slot
    current: float  # when the slot last held all that the node has told of
    sequence: int | None = None  # the state that the slot holds; None before the first snapshot
    heard: int = 0  # the latest state that a batch told of
    stale: bool = False


class Mirror:
    """Block keys of all nodes, fed by one or more feeds. A hint: the node is the authority on
    what it holds.

    A node is known from `set_epoch` to `drop`; both come from its state stream, which alone says
    that it lives. Feeds may overlap and repeat themselves: a batch that brings nothing new is
    passed over.

        mirror.set_epoch("node-0", 7)
        mirror.apply("node-0", 7, batch)               # False: a gap, ask for a snapshot
        mirror.match(block_keys(root, token_ids, 16))  # {"node-0": Match(4, 0)}

    Lives on the router's event loop: not thread-safe.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._table = KeyTable()
        self._nodes: dict[str, _Node] = {}

    def set_epoch(self, node: str, epoch: int) -> None:
        """The node lives, in this epoch. What it held in another one counts for nothing now."""
        known = self._nodes.get(node)
        if known is not None and known.epoch == epoch:
            return
        self.drop(node)
        self._nodes[node] = _Node(epoch, self._table.open(node), self._clock())

    def drop(self, node: str) -> None:
        """The node is gone with all its entries. Unknown nodes are fine."""
        known = self._nodes.pop(node, None)
        if known is not None:
            self._table.retire(known.slot)

    def apply(self, node: str, epoch: int, batch: Batch) -> bool:
        """Takes a batch in. False if it does not continue what is held: a gap, the node is STALE
        until a snapshot.

        A batch of an unknown node or of another epoch is ignored (True: nothing is missing).
        Raises ValueError, and changes nothing, when `batch.packed` is malformed.
        """
        known = self._nodes.get(node)
        if known is None or known.epoch != epoch:
            return True
        changes = runs(batch.packed)
        known.heard = max(known.heard, batch.sequence)
        if not batch.snapshot and (known.sequence is None or batch.base > known.sequence):
            known.stale = True
            return False
        if known.sequence is not None and batch.sequence < known.sequence:
            return True
        if batch.snapshot:
            self._forget(node, known)
        self._change(node, known, changes)
        known.sequence, known.stale = batch.sequence, batch.sequence < known.heard
        self.confirm(node)
        return True

    def confirm(self, node: str) -> None:
        """The node has nothing new to tell. Unknown nodes are fine; stale ones stay stale."""
        known = self._nodes.get(node)
        if known is not None and known.sequence is not None and not known.stale:
            known.current = self._clock()

    def mark_stale(self, node: str) -> None:
        """The node's feed is cut or behind, until a batch without a gap. Unknown nodes are fine."""
        if (known := self._nodes.get(node)) is not None:
            known.stale = True

    def match(self, keys: Sequence[bytes]) -> dict[str, Match]:
        """For each node that holds the first block: its longest leading run, from any tier."""
        return self._table.match(keys)

    def mode(self, node: str) -> fleet_pb2.IndexMode.ValueType:
        """EXACT; STALE after a gap or cut; BLIND before a snapshot, or for an unknown node."""
        known = self._nodes.get(node)
        if known is None or known.sequence is None:
            return fleet_pb2.INDEX_MODE_BLIND
        return fleet_pb2.INDEX_MODE_STALE if known.stale else fleet_pb2.INDEX_MODE_EXACT

    def sequence(self, node: str) -> int | None:
        """Number of the node's state that is held, None if there is none."""
        known = self._nodes.get(node)
        return None if known is None else known.sequence

    def lag(self, node: str) -> float | None:
        """Seconds since all that the node had told of was held; None for an unknown node."""
        known = self._nodes.get(node)
        return None if known is None else max(0.0, self._clock() - known.current)

    def size(self, node: str) -> int:
        """Keys held for the node; a key in both tiers counts once."""
        known = self._nodes.get(node)
        return 0 if known is None else known.slot.size

    def _change(self, node: str, known: _Node, changes: Sequence[Run]) -> None:
        for kind, tier, keys in changes:
            if tier is None:
                self._forget(node, known)
            elif kind is Kind.STORED:
                self._table.store(known.slot, tier, keys)
            else:
                self._table.remove(known.slot, tier, keys)
        self._table.sweep(2 * sum(len(run.keys) for run in changes))

    def _forget(self, node: str, known: _Node) -> None:
        self._table.retire(known.slot)
        known.slot = self._table.open(node)

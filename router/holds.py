"""What a request under a lease holds of this router until it ends."""

from router.charge import Charge
from router.ledger import Ledger, Reservation
from router.request_log import Entry
from router.slot import Slot


class Holds:
    """All closed together; the reservation comes last. Idempotent."""

    __slots__ = ("_ledger", "_slot", "charge", "entry", "reservation")

    def __init__(self, ledger: Ledger, slot: Slot, charge: Charge, entry: Entry) -> None:
        """`entry` is told what the node has done for it."""
        self._ledger = ledger
        self._slot = slot
        self.charge = charge
        self.entry = entry
        self.reservation: Reservation | None = None

    def close(self) -> None:
        try:
            if self.reservation is not None:
                self._ledger.release(self.reservation)
        finally:
            try:
                self.charge.close()
            finally:
                self._slot.close()

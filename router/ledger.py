"""What this router has dispatched and not yet seen the end of, per node. Plain Python.

    reserve ──▶ held, prefilling ──prefilled──▶ held ──release──▶ gone
                       └────────────────release──────────────────▶ gone

A node reports its load together with the last dispatch that is counted in it. The router adds what
it has sent after that one, and takes off what it has seen end since: nothing is counted twice, and
the next request of a conversation does not find the node busy with the one before.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from kvmesh.errors import Code, RequestError

Key = tuple[str, int]
"""Request id and attempt."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """One dispatch. It has one owner, who releases it; releasing twice is the same as once."""

    request_id: str
    attempt: int
    node: str
    sequence: int  # the router's count of dispatches to the node
    prefill_tokens: int  # prompt tokens that the node is expected to compute
    blocks: int  # that the prompt takes
    committed: int  # blocks that it can come to hold, as the node counts its growth
    samples: int

    @property
    def key(self) -> Key:
        return self.request_id, self.attempt


@dataclass(slots=True)
class Change:
    """What happened to a node's load since its last report, as far as this router knows.

    More dispatches add, first tokens and ends subtract: a part can be negative. Of `committed` and
    `samples` nothing is subtracted: a report may have known of the end already, and what is taken
    off twice is given away twice.
    """

    requests: int = 0
    prefill_tokens: int = 0
    blocks: int = 0
    committed: int = 0
    samples: int = 0


@dataclass(slots=True)
class _Account:
    sequence: int = 0
    reported: int = 0  # the last dispatch that the node's report counts
    held: dict[Key, Reservation] = field(default_factory=dict)
    prefilling: dict[Key, Reservation] = field(default_factory=dict)
    settled: Change = field(default_factory=Change)  # counted in the report, and over since
    change: Change | None = None  # the sum of it, until anything happens


class Ledger:
    """The accounts of all nodes, by name. Counts are sizes of what is held: they cannot drift or go
    below zero.
    """

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._requests: set[str] = set()
        self._listeners: list[Callable[[], None]] = []

    def on_room(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after every release and every report: there may be room now."""
        self._listeners.append(listener)

    def reserve(
        self,
        request_id: str,
        attempt: int,
        node: str,
        *,
        prefill_tokens: int,
        blocks: int,
        committed: int = 0,
        samples: int = 0,
    ) -> Reservation:
        """Raises ALREADY_EXISTS while another dispatch of the request id is held."""
        if request_id in self._requests:
            raise RequestError(
                Code.ALREADY_EXISTS,
                f"request_id: {request_id} is in flight, use another",
                field="request_id",
            )
        account = self._accounts.setdefault(node, _Account())
        account.sequence += 1
        reservation = Reservation(
            request_id,
            attempt,
            node,
            account.sequence,
            prefill_tokens,
            blocks,
            committed,
            samples,
        )
        self._requests.add(request_id)
        account.held[reservation.key] = account.prefilling[reservation.key] = reservation
        account.change = None
        return reservation

    def prefilled(self, reservation: Reservation) -> None:
        """The first token is there: the prompt weighs on the node no more. Idempotent."""
        account = self._accounts[reservation.node]
        if account.prefilling.get(reservation.key) is reservation:
            del account.prefilling[reservation.key]
            account.change = None
            if reservation.sequence <= account.reported:
                account.settled.prefill_tokens += reservation.prefill_tokens

    def release(self, reservation: Reservation) -> None:
        """Idempotent: a second release touches neither the next attempt nor the next request of the
        same id.
        """
        account = self._accounts[reservation.node]
        if account.held.get(reservation.key) is reservation:
            self.prefilled(reservation)
            del account.held[reservation.key]
            account.change = None
            self._requests.remove(reservation.request_id)
            if reservation.sequence <= account.reported:
                account.settled.requests += 1
                account.settled.blocks += reservation.blocks
            self._changed()

    def report(self, node: str, last_sequence: int) -> None:
        """The node has reported its load, dispatches up to `last_sequence` counted."""
        account = self._accounts.setdefault(node, _Account())
        account.reported, account.settled, account.change = last_sequence, Change(), None
        self._changed()

    def since_report(self, node: str) -> Change:
        """What to add to the node's last report. Asked several times for each request and node, so
        it is remembered; not to be changed.
        """
        account = self._accounts.get(node)
        if account is None:
            return Change()
        if account.change is None:
            account.change = self._sum(account)
        return account.change

    @staticmethod
    def _sum(account: _Account) -> Change:
        held = _after(account.held, account.reported)
        prefilling = _after(account.prefilling, account.reported)
        settled = account.settled
        return Change(
            requests=len(held) - settled.requests,
            prefill_tokens=sum(each.prefill_tokens for each in prefilling) - settled.prefill_tokens,
            blocks=sum(each.blocks for each in held) - settled.blocks,
            committed=sum(each.committed for each in held),
            samples=sum(each.samples for each in held),
        )

    def in_flight(self, node: str) -> int:
        return len(self._accounts[node].held) if node in self._accounts else 0

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()

    @property
    def idle(self) -> bool:
        return not any(account.held for account in self._accounts.values())

    def check_integrity(self) -> None:
        """Asserts that what prefills is held, that each request is held once, and that sums which
        are remembered are right.
        """
        held = [each for account in self._accounts.values() for each in account.held.values()]
        assert self._requests == {each.request_id for each in held}
        assert len(self._requests) == len(held)
        for account in self._accounts.values():
            assert account.prefilling.keys() <= account.held.keys()
            assert account.change in (None, self._sum(account))


def _after(reservations: dict[Key, Reservation], sequence: int) -> list[Reservation]:
    """The newest ones, without a walk over all: a dict keeps the order of dispatch."""
    newest = []
    for each in reversed(reservations.values()):
        if each.sequence <= sequence:
            break
        newest.append(each)
    return newest

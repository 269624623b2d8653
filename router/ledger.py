"""What this router has dispatched and not yet seen the end of, per node. Plain Python.

    reserve ──▶ held, prefilling ──prefilled──▶ held ──release──▶ gone
                       └────────────────release──────────────────▶ gone

A node reports its load together with the last dispatch that is counted in it. The router adds what
it has sent after that one, and takes off what it has seen end since: nothing is counted twice, and
the next request of a conversation does not find the node busy with the one before.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from kvmesh.errors import Code, RequestError
from router.standing import Standing

if TYPE_CHECKING:
    from router.node import Node

Key = tuple[str, int]
"""Request id and attempt."""


class Reservation(NamedTuple):
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
    change: Change = field(default_factory=Change)  # kept up with every event
    standing: Standing | None = None  # with this change; None until somebody asks

    def add(
        self, requests: int, prefill_tokens: int, blocks: int, committed: int, samples: int
    ) -> None:
        change, self.standing = self.change, None
        change.requests += requests
        change.prefill_tokens += prefill_tokens
        change.blocks += blocks
        change.committed += committed
        change.samples += samples

    def counts(self, reservation: Reservation) -> bool:
        """Whether the dispatch is in the node's report."""
        return reservation.sequence <= self.reported


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
        key = request_id, attempt
        account.held[key] = account.prefilling[key] = reservation
        if not account.counts(reservation):
            account.add(1, prefill_tokens, blocks, committed, samples)
        return reservation

    def prefilled(self, reservation: Reservation) -> None:
        """The first token is there: the prompt weighs on the node no more. Idempotent."""
        account = self._accounts[reservation.node]
        if account.prefilling.get(reservation.key) is reservation:
            del account.prefilling[reservation.key]
            account.add(0, -reservation.prefill_tokens, 0, 0, 0)

    def release(self, reservation: Reservation) -> None:
        """Idempotent: a second release touches neither the next attempt nor the next request of the
        same id.
        """
        account = self._accounts[reservation.node]
        if account.held.get(reservation.key) is reservation:
            self.prefilled(reservation)
            del account.held[reservation.key]
            self._requests.remove(reservation.request_id)
            unreported = not account.counts(reservation)
            account.add(
                -1,
                0,
                -reservation.blocks,
                -reservation.committed * unreported,
                -reservation.samples * unreported,
            )
            self._changed()

    def report(self, node: str, last_sequence: int) -> None:
        """The node has reported its load, dispatches up to `last_sequence` counted."""
        account = self._accounts.setdefault(node, _Account())
        account.reported = last_sequence
        held, prefilling = (
            _after(each, last_sequence) for each in (account.held, account.prefilling)
        )
        account.change, account.standing = Change(), None
        if held:
            account.change = Change(
                requests=len(held),
                prefill_tokens=sum(each.prefill_tokens for each in prefilling),
                blocks=sum(each.blocks for each in held),
                committed=sum(each.committed for each in held),
                samples=sum(each.samples for each in held),
            )
        self._changed()

    def since_report(self, node: str) -> Change:
        """What to add to the node's last report."""
        account = self._accounts.get(node)
        return Change() if account is None else replace(account.change)

    def standing(self, node: "Node") -> Standing:
        """The node's report with what to add to it."""
        account = self._accounts.get(node.name)
        standing = None if account is None else account.standing
        if standing is None or standing.load is not node.load:
            return self._renew(node)
        return standing

    def standings(self, nodes: Collection["Node"]) -> list[Standing]:
        """In the order of `nodes`. Asked of all nodes for each request, so without calls."""
        accounts = self._accounts
        try:
            found = [accounts[node.name].standing for node in nodes]
        except KeyError:  # a node that has never been heard of
            return [self.standing(node) for node in nodes]
        return [
            standing if standing is not None and standing.load is node.load else self._renew(node)
            for node, standing in zip(nodes, found, strict=True)
        ]

    def _renew(self, node: "Node") -> Standing:
        account = self._accounts.setdefault(node.name, _Account())
        account.standing = standing = Standing.of(node, account.change)
        return standing

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
        are kept are right.
        """
        held = [each for account in self._accounts.values() for each in account.held.values()]
        assert self._requests == {each.request_id for each in held}
        assert len(self._requests) == len(held)
        for account in self._accounts.values():
            assert account.prefilling.keys() <= account.held.keys()
            new, change = _after(account.held, account.reported), account.change
            assert change.committed == sum(each.committed for each in new)
            assert change.samples == sum(each.samples for each in new)
            assert change.requests <= len(new)
            assert change.blocks <= sum(each.blocks for each in new)


def _after(reservations: dict[Key, Reservation], sequence: int) -> list[Reservation]:
    """The newest ones, without a walk over all: a dict keeps the order of dispatch."""
    newest = []
    for each in reversed(reservations.values()):
        if each.sequence <= sequence:
            break
        newest.append(each)
    return newest

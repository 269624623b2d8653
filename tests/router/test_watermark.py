"""When nodes have room, by what they said and what has been sent since."""

import pytest

from kvmesh.v1 import cache_node_pb2 as pb
from router.ledger import Ledger
from router.node import Node
from router.request_size import RequestSize
from router.watermark import Marks, Wait, Watermark

BLOCK = 16


def size(prompt=160, output=160, samples=1):
    return RequestSize(prompt, output, samples, BLOCK)


class Fleet:
    """Nodes that have said what they are told to say."""

    def __init__(self, *names, blocks=100, seats=64):
        self.ledger = Ledger()
        self.watermark = Watermark(self.ledger, Marks(low=0.8, high=0.9))
        self.nodes = [
            Node(name, None, name, num_blocks=blocks, max_num_seqs=seats) for name in names
        ]

    def report(self, place, committed, *, last=0, share=1.0, running=1):
        node = self.nodes[place]
        node.load = pb.NodeLoad(committed_blocks=committed, growth_share=share, running=running)
        self.ledger.report(node.name, last)

    def dispatch(self, place, request_id, committed):
        return self.ledger.reserve(
            request_id,
            1,
            self.nodes[place].name,
            prefill_tokens=0,
            blocks=0,
            committed=committed,
            samples=1,
        )

    def obstacle(self, what=None, on_the_way=()):
        return self.watermark.obstacle(self.nodes, what or size(), on_the_way)


def test_a_request_needs_its_blocks_to_the_longest_end():
    assert size(160, 160).blocks() == 20
    assert size(161, 159).blocks() == 20
    assert size(160, 0).blocks() == 10
    # The third block of the prompt is not full: each sample has its own.
    assert size(40, 24, samples=3).blocks() == 2 + 3 * 2
    assert size(160, 160).blocks(growth_share=0.25) == 13


def test_one_node_with_room_is_enough():
    fleet = Fleet("a", "b")
    fleet.report(0, 85)
    fleet.report(1, 85)
    assert fleet.obstacle() is Wait.BLOCKS
    fleet.report(1, 80)
    assert fleet.obstacle() is None
    assert fleet.watermark.with_room(fleet.nodes, size()) == [fleet.nodes[1]]


def test_what_the_node_has_counted_counts_once():
    fleet = Fleet("a")
    fleet.report(0, 40)
    held = fleet.dispatch(0, "r", committed=45)
    assert fleet.obstacle() is Wait.BLOCKS
    fleet.report(0, 85, last=1)
    assert fleet.watermark.committed(fleet.nodes[0]) == 85
    fleet.report(0, 40, last=1)  # it has ended there, and its last frame is still on the way
    fleet.ledger.release(held)
    assert fleet.watermark.committed(fleet.nodes[0]) == 40
    assert fleet.obstacle() is None


def test_a_node_above_the_high_mark_comes_back_at_the_low_one():
    fleet = Fleet("a")
    tiny = size(1, 1)
    fleet.report(0, 90)
    assert fleet.obstacle(tiny) is None
    fleet.report(0, 91)
    assert fleet.obstacle(tiny) is Wait.WATERMARK
    fleet.report(0, 81)
    assert fleet.obstacle(tiny) is Wait.WATERMARK
    fleet.report(0, 80)
    assert fleet.obstacle(tiny) is None
    fleet.report(0, 89)
    assert fleet.obstacle(tiny) is None


def test_growth_counts_as_the_node_counts_it():
    fleet = Fleet("a")
    fleet.report(0, 86, share=0.4)
    assert fleet.obstacle() is None
    fleet.report(0, 87, share=0.4)
    assert fleet.obstacle() is Wait.BLOCKS


def test_seats_are_counted_too():
    fleet = Fleet("a", seats=4)
    fleet.report(0, 10, running=3)
    assert fleet.obstacle(size(16, 16)) is None
    assert fleet.obstacle(size(16, 16, samples=2)) is Wait.SEATS
    fleet.dispatch(0, "r", committed=2)
    assert fleet.obstacle(size(16, 16)) is Wait.SEATS


def test_those_on_the_way_count_on_every_node():
    fleet = Fleet("a", "b")
    fleet.report(0, 70)
    fleet.report(1, 70)
    assert fleet.obstacle(on_the_way=[size(160, 0)]) is None
    assert fleet.obstacle(on_the_way=[size(160, 0), size(160, 0)]) is Wait.BLOCKS


def test_an_idle_node_takes_what_fills_it():
    fleet = Fleet("a")
    fleet.report(0, 0, running=0)
    assert fleet.obstacle(size(1600, 0)) is None


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([(95, 1), (85, 1)], Wait.WATERMARK),
        ([(85, 1), (10, 64)], Wait.SEATS),
    ],
)
def test_the_reason_is_the_obstacle_that_goes_first(reports, reason):
    fleet = Fleet("a", "b")
    for place, (committed, running) in enumerate(reports):
        fleet.report(place, committed, running=running)
    assert fleet.obstacle() is reason

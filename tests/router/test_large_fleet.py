"""Of a large fleet a prompt is weighed against a part, which has to hold the nodes that matter."""

import random
import time
from collections import Counter

import pytest

from bench.routing import MODEL
from kvmesh.errors import RequestError
from kvmesh.v1.cache_node_pb2 import TIER_GPU, NodeLoad
from prefix_index.batch import Batch
from prefix_index.events import pack_held
from router.eligibility import Eligibility
from router.index import Index
from router.ledger import Ledger
from router.node import Health
from router.placement import MOST, Placement
from router.prompt import Prompt
from router.registry import Registry
from router.request_size import RequestSize
from router.watcher import state_interval
from router.watermark import Marks, Watermark
from tests.router.fleet_fixture import running_fleet
from tests.router.stub_node import StubNode

NODES, POOL = 500, 100  # blocks
SIZE = RequestSize(2 * MODEL.block_size, 1, 1, MODEL.block_size)


class Fleet:
    def __init__(self, policy="prefix-aware"):
        self.registry = Registry([f"node-{number}:1" for number in range(NODES)])
        self.index, self.ledger, rng = Index(None, ""), Ledger(), random.Random(1)
        self.placement = Placement(
            self.registry,
            Eligibility(0.0, time.monotonic, rng),
            self.index,
            self.ledger,
            Watermark(self.ledger, Marks(0.9, 0.95)),
            policy,
            rng,
        )
        for node in self.registry.nodes:
            node.name, node.num_blocks, node.epoch = node.address, POOL, 1
            node.max_num_seqs, node.health = 256, Health.NODE_HEALTH_UP
            node.load = NodeLoad(growth_share=1.0, prefill_tokens_per_second=1e4)
            self.index.opened(node.name, node.epoch)

    def holds(self, node, keys):
        batch = Batch(0, 1, True, pack_held({TIER_GPU: keys}))
        assert self.index.apply(node.name, node.epoch, batch.to_proto())

    def place(self, number, keys, **wanted):
        prompt = Prompt(b"", 2 * MODEL.block_size, keys, tokenize_us=0, key_us=0)
        return self.placement.place(f"request-{number}", prompt, MODEL, 1, SIZE, **wanted)


@pytest.fixture
async def fleet():
    fleet = Fleet()
    yield fleet
    await fleet.registry.close()


def keys_of(name):
    return [f"{name}-{place}".encode().ljust(16) for place in range(2)]


async def test_the_one_node_that_has_the_prompt_is_always_among_those_that_are_weighed(fleet):
    owner = fleet.registry.nodes[321]
    fleet.holds(owner, keys_of("warm"))
    for number in range(20):
        placed = fleet.place(number, keys_of("warm"))
        assert placed.node is owner
        fleet.ledger.release(placed.reservation)


async def test_so_is_one_that_was_sent_it_a_moment_ago(fleet):
    first = fleet.place(0, keys_of("new"))
    fleet.ledger.release(first.reservation)
    assert fleet.place(1, keys_of("new")).node is first.node


async def test_of_many_that_have_it_those_with_most_are_weighed(fleet):
    keys = keys_of("shared")
    for node in fleet.registry.nodes:
        fleet.holds(node, keys if node is fleet.registry.nodes[7] else keys[:1])
    placed = fleet.place(0, keys)
    assert placed.node is fleet.registry.nodes[7]
    assert len(placed.candidates) <= 2 * MOST


async def test_load_spreads_over_the_whole_fleet(fleet):
    """Nobody reports: all that is known of a node is what was sent there."""
    counts = Counter(fleet.place(number, keys_of(number)).node.name for number in range(2 * NODES))
    assert len(counts) > 0.9 * NODES
    assert max(counts.values()) <= 5


async def test_a_last_node_with_room_is_found(fleet):
    for node in fleet.registry.nodes[:-1]:
        node.load = NodeLoad(growth_share=1.0, committed_blocks=POOL, running=1)
    assert fleet.place(0, keys_of("new")).node is fleet.registry.nodes[-1]


async def test_a_node_that_refused_is_not_asked_again(fleet):
    owner = fleet.registry.nodes[321]
    fleet.holds(owner, keys_of("warm"))
    assert fleet.place(0, keys_of("warm"), tried={owner.address}).node is not owner


async def test_a_fleet_whose_breakers_are_open_is_unavailable(fleet):
    for node in fleet.registry.nodes:
        while node.breaker.allows:
            node.breaker.failed(node.breaker.began())
    with pytest.raises(RequestError, match="rest"):
        fleet.place(0, keys_of("new"))


async def test_round_robin_visits_every_node():
    fleet = Fleet("round-robin")
    seen = {fleet.place(number, keys_of(number)).node.name for number in range(NODES)}
    assert len(seen) == NODES
    await fleet.registry.close()


def test_nodes_of_a_larger_fleet_report_less_often():
    assert [state_interval(nodes) for nodes in (1, 10, 64, 250, 2000)] == [
        *(0.01, 0.01, 0.064),
        *(0.25, 0.25),
    ]


async def test_routers_ask_for_it(monkeypatch):
    monkeypatch.setattr("router.watcher.STATES", 20)
    nodes = StubNode("node-0"), StubNode("node-1")
    async with running_fleet(*nodes):
        assert [node.interval for node in nodes] == [0.1, 0.1]

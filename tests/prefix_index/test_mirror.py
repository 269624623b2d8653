"""The router's picture of the nodes' caches."""

import itertools
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvmesh.v1.cache_node_pb2 import TIER_CPU, TIER_GPU
from kvmesh.v1.fleet_pb2 import INDEX_MODE_BLIND, INDEX_MODE_EXACT, INDEX_MODE_STALE
from prefix_index.batch import Batch
from prefix_index.event_log import EventLog
from prefix_index.events import Cleared, Removed, Stored, pack
from prefix_index.mirror import Match, Mirror
from tests.prefix_index import strategies
from tests.prefix_index.strategies import KEYS


def fed(*logs, node="node"):
    mirror = Mirror()
    for number, log in enumerate(logs):
        mirror.set_epoch(f"{node}-{number}", log.epoch)
        assert mirror.apply(f"{node}-{number}", log.epoch, log.snapshot())
    return mirror


def log_of(*events, epoch=1):
    log = EventLog(epoch)
    log.append(events)
    return log


def test_the_longest_leading_run_counts():
    with_hole = log_of(*(Stored(key, TIER_GPU) for key in KEYS if key != KEYS[3]))
    without_first = log_of(*(Stored(key, TIER_GPU) for key in KEYS[1:]))
    mirror = fed(with_hole, without_first)
    assert mirror.match(KEYS) == {"node-0": Match(3, 0)}
    assert mirror.match(KEYS[1:]) == {"node-0": Match(2, 0), "node-1": Match(5, 0)}
    assert mirror.match([]) == {}


def test_tiers_are_told_apart_and_gpu_wins():
    mirror = fed(
        log_of(
            Stored(KEYS[0], TIER_GPU),
            Stored(KEYS[0], TIER_CPU),
            Stored(KEYS[1], TIER_CPU),
            Stored(KEYS[2], TIER_GPU),
        )
    )
    assert mirror.match(KEYS) == {"node-0": Match(2, 1)}
    assert mirror.match(KEYS)["node-0"].blocks == 3
    assert mirror.size("node-0") == 3


def test_a_tier_that_comes_and_goes_along_a_prefix_is_counted_once():
    cpu = {KEYS[1], KEYS[3], KEYS[4]}
    events = [Stored(key, TIER_CPU if key in cpu else TIER_GPU) for key in KEYS]
    mirror = fed(log_of(*events), log_of(*(Stored(key, TIER_GPU) for key in KEYS[:4])))
    assert mirror.match(KEYS) == {"node-0": Match(3, 3), "node-1": Match(4, 0)}


@pytest.mark.parametrize("holes", [0.01, 0.1, 0.5])
def test_holes_anywhere_in_a_long_prompt(holes):
    """A search for the end of what is held may look past a hole; the answer must not."""
    draw, keys = random.Random(3), [number.to_bytes(16) for number in range(60)]
    for _ in range(200):
        mirror, held = Mirror(), {}
        for name in "abcde":
            length = draw.randrange(61)
            held[name] = {
                key: draw.choice((TIER_GPU, TIER_GPU, TIER_CPU))
                for key in keys[:length]
                if draw.random() > holes
            }
            mirror.set_epoch(name, 1)
            log = log_of(*(Stored(key, tier) for key, tier in held[name].items()))
            mirror.apply(name, 1, log.snapshot())
        expected = {name: _run(keys, tiers) for name, tiers in held.items()}
        assert mirror.match(keys) == {n: match for n, match in expected.items() if match.blocks}


def _run(keys, tiers):
    run = [tiers[key] for key in itertools.takewhile(tiers.__contains__, keys)]
    return Match(run.count(TIER_GPU), run.count(TIER_CPU))


def test_modes():
    log = log_of(Stored(KEYS[0], TIER_GPU))
    mirror = Mirror()
    assert mirror.mode("node") == INDEX_MODE_BLIND
    mirror.set_epoch("node", 1)
    assert mirror.mode("node") == INDEX_MODE_BLIND
    mirror.apply("node", 1, log.snapshot())
    assert mirror.mode("node") == INDEX_MODE_EXACT
    mirror.mark_stale("node")
    assert mirror.mode("node") == INDEX_MODE_STALE
    assert mirror.apply("node", 1, Batch(1, 1, False, b"\x01"))  # says only how far the node is
    assert mirror.mode("node") == INDEX_MODE_EXACT
    assert not mirror.apply("node", 1, Batch(2, 3, False, b"\x01"))
    assert mirror.mode("node") == INDEX_MODE_STALE


def test_lag_is_the_time_since_all_that_the_node_told_of_was_held():
    now = 100.0
    mirror, log = Mirror(lambda: now), log_of(Stored(KEYS[0], TIER_GPU))
    assert mirror.lag("node") is None
    mirror.set_epoch("node", log.epoch)
    now = 101.0
    mirror.confirm("node")
    assert mirror.lag("node") == 1.0  # nothing is held yet
    assert mirror.apply("node", log.epoch, log.snapshot())
    assert mirror.lag("node") == 0.0
    now = 103.0
    assert mirror.lag("node") == 2.0
    mirror.confirm("node")
    assert mirror.lag("node") == 0.0
    assert not mirror.apply("node", log.epoch, Batch(5, 6, False, pack([])))
    now = 104.0
    mirror.confirm("node")
    assert mirror.lag("node") == 1.0  # behind, whatever the node says
    assert mirror.apply("node", log.epoch, Batch(0, 6, True, pack([])))
    assert mirror.lag("node") == 0.0


def test_a_batch_seen_before_changes_nothing():
    log = EventLog(1)
    subscription = log.subscribe()
    batches = [subscription.take()]
    for event in (Stored(KEYS[0], TIER_GPU), Removed(KEYS[0], TIER_GPU)):
        log.append([event])
        batches.append(subscription.take())
    mirror = Mirror()
    mirror.set_epoch("node", 1)
    for batch in [*batches, *batches]:
        assert mirror.apply("node", 1, batch)
    assert mirror.match(KEYS) == {}
    assert mirror.sequence("node") == 2


def test_another_epoch_is_ignored():
    mirror = fed(log_of(Stored(KEYS[0], TIER_GPU)))
    assert mirror.apply("node-0", 2, log_of(Cleared(), epoch=2).snapshot())
    assert mirror.apply("stranger", 1, log_of(Stored(KEYS[0], TIER_GPU)).snapshot())
    assert mirror.match(KEYS) == {"node-0": Match(1, 0)}
    assert mirror.mode("stranger") == INDEX_MODE_BLIND


def test_malformed_events_change_nothing():
    mirror = fed(log_of(Stored(KEYS[0], TIER_GPU)))
    with pytest.raises(ValueError, match="packed events"):
        mirror.apply("node-0", 1, Batch(0, 9, True, b"nonsense"))
    assert mirror.match(KEYS) == {"node-0": Match(1, 0)}
    assert mirror.sequence("node-0") == 1


def test_memory_of_dropped_nodes_comes_back():
    mirror = Mirror()
    for epoch in range(1, 200):
        mirror.set_epoch("node", epoch)
        fresh = [Stored(epoch.to_bytes(8) + bytes([0] * 7 + [n]), TIER_GPU) for n in range(50)]
        log = log_of(*fresh, epoch=epoch)
        mirror.apply("node", epoch, log.snapshot())
    assert mirror.size("node") == 50
    assert len(mirror._table) <= 50 * 5
    assert mirror._table._slots < 5


class AgainstANaiveModel(RuleBasedStateMachine):
    """Three nodes, each with a log; batches may be lost, repeated or late."""

    names = st.sampled_from(["a", "b", "c"])

    def __init__(self):
        super().__init__()
        self.mirror = Mirror()
        self.logs = {}
        self.feeds = {}
        self.expected = {}  # what the mirror should hold: node → set of (key, tier)
        self.sent = {}
        self.epoch = 0

    @rule(node=names)
    def start(self, node):
        self.epoch += 1
        self.logs[node] = EventLog(self.epoch, max_pending=10)
        self.feeds[node] = self.logs[node].subscribe()
        self.expected[node] = set()
        self.sent[node] = []
        self.mirror.set_epoch(node, self.epoch)
        assert self.mirror.mode(node) == INDEX_MODE_BLIND

    @rule(node=names, events=st.lists(strategies.events, max_size=8))
    def step(self, node, events):
        if node in self.logs:
            self.logs[node].append(events)

    @rule(node=names)
    def deliver(self, node):
        if node not in self.logs or (batch := self.feeds[node].take()) is None:
            return
        self.sent[node].append(batch)
        if self.mirror.apply(node, self.logs[node].epoch, batch):
            log = self.logs[node]
            self.expected[node] = {(event.key, event.tier) for event in log.snapshot().events}
            assert self.mirror.mode(node) == INDEX_MODE_EXACT
        else:
            self.feeds[node].restart()
            assert self.mirror.mode(node) != INDEX_MODE_EXACT

    @rule(node=names)
    def lose(self, node):
        if node in self.logs:
            self.feeds[node].take()

    @rule(node=names, data=st.data())
    def repeat(self, node, data):
        if self.sent.get(node):
            held = self.mirror.sequence(node)
            batch = data.draw(st.sampled_from(self.sent[node]))
            self.mirror.apply(node, self.logs[node].epoch, batch)
            assert self.mirror.sequence(node) == held

    @rule(node=names)
    def drop(self, node):
        for table in (self.logs, self.feeds, self.expected, self.sent):
            table.pop(node, None)
        self.mirror.drop(node)

    @invariant()
    def matches_the_model(self):
        for first in range(3):
            assert self.mirror.match(KEYS[first:]) == self._matches(KEYS[first:])
        for node, held in self.expected.items():
            assert self.mirror.size(node) == len({key for key, _ in held})

    def _matches(self, keys):
        found = {}
        for node, held in self.expected.items():
            tiers = [self._tier(held, key) for key in keys]
            run = tiers[: tiers.index(None)] if None in tiers else tiers
            if run:
                found[node] = Match(run.count(TIER_GPU), run.count(TIER_CPU))
        return found

    @staticmethod
    def _tier(held, key):
        return next((tier for tier in (TIER_GPU, TIER_CPU) if (key, tier) in held), None)


TestAgainstANaiveModel = AgainstANaiveModel.TestCase
TestAgainstANaiveModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)

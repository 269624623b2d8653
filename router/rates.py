"""What nodes do a second, from the counters that they report."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kvmesh.v1 import fleet_pb2
from router.node import Node
from router.registry import Registry

PERIOD = 1.0  # seconds between two looks at the counters
WINDOW = 10  # periods that a rate is the mean of


class _Look(NamedTuple):
    """A node's counters since its start, at a moment."""

    at: float
    prompt_tokens: int
    hit_tokens: int
    output_tokens: int


@dataclass(slots=True)
class _Life:
    """A node from one start to the next. Its counters only go up."""

    epoch: int
    looks: deque[_Look] = field(default_factory=lambda: deque(maxlen=WINDOW + 1))


class Rates:
    """Of nodes that are there. One that comes, or comes back, counts from its first report on."""

    def __init__(self, registry: Registry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._lives: dict[str, _Life] = {}  # by address
        self._looked = clock()

    def pass_time(self, _seconds: float) -> None:
        """To be called more often than once in PERIOD."""
        now = self._clock()
        if now - self._looked >= PERIOD:
            self._looked = now
            there = [node for node in self._registry.nodes if node.accepted]
            self._lives = {node.address: self._look(node, now) for node in there}

    def of(self, node: Node) -> fleet_pb2.Rates:
        life = self._lives.get(node.address)
        if life is None or len(life.looks) < 2:
            return fleet_pb2.Rates()
        first, last = life.looks[0], life.looks[-1]
        seconds = last.at - first.at
        return fleet_pb2.Rates(
            prompt_tokens=(last.prompt_tokens - first.prompt_tokens) / seconds,
            hit_tokens=(last.hit_tokens - first.hit_tokens) / seconds,
            output_tokens=(last.output_tokens - first.output_tokens) / seconds,
        )

    def _look(self, node: Node, now: float) -> _Life:
        load, life = node.load, self._lives.get(node.address)
        if life is None or life.epoch != node.epoch:
            life = _Life(node.epoch)
        life.looks.append(_Look(now, load.queried_tokens, load.hit_tokens, load.output_tokens))
        return life


def total(rates: list[fleet_pb2.Rates]) -> fleet_pb2.Rates:
    """Of all nodes together."""
    return fleet_pb2.Rates(
        prompt_tokens=sum(each.prompt_tokens for each in rates),
        hit_tokens=sum(each.hit_tokens for each in rates),
        output_tokens=sum(each.output_tokens for each in rates),
    )

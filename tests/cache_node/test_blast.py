"""A seeded random blast of the whole scheduler: every feature at once, thousands of steps."""

import random
from dataclasses import dataclass, field

import pytest

from cache_node.commitment import Adaptive, Greedy, Static, Strict
from cache_node.preemption import PreemptionMode
from cache_node.sequence import Sequence
from tests.cache_node.mock_node import MockNode, reference, tokens
from tests.cache_node.pool_content import chain


@dataclass
class Blast:
    """Submits, aborts, pins, lets loads finish late, fail, or hang, by the numbers of `seed`."""

    node: MockNode
    seed: int
    samples: bool = True
    live: list[Sequence] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    wanted: dict[str, Sequence] = field(default_factory=dict)

    def run(self, steps: int) -> None:
        rng = random.Random(self.seed)
        for _ in range(steps):
            self._submit(rng)
            self._abort(rng)
            self._pin(rng)
            self._loads(rng)
            if self.node.scheduler.has_work:
                assert self.node.step() or self.node.scheduler.roster.loading
        while self.node.memory.pins.yield_one():
            pass
        self.node.executor.hold_loads = False
        self.node.executor.finish_loads()
        self.node.run()
        self.node.assert_all_free()

    def check(self) -> None:
        """Each request ended exactly once, and whoever was not aborted got the right tokens."""
        ended = {request for request, _ in self.node.finished}
        assert ended | self.aborted == set(self.wanted)
        for request, sample in self.node.finished:
            leader = self.wanted[request]
            sequence = self.node.finished[request, sample]
            assert sequence.output == reference(
                leader.request.prompt, leader.params.max_tokens, sample
            )
        for request in ended - self.aborted:
            samples = [sample for name, sample in self.node.finished if name == request]
            assert sorted(samples) == list(range(self.wanted[request].request.samples))

    def _submit(self, rng: random.Random) -> None:
        self.live = [seq for seq in self.live if seq.request.unfinished]
        if rng.random() > 0.25 or len(self.live) > 20:
            return
        prompt = tokens(rng.randint(1, 50), seed=rng.randint(0, 6))
        if rng.random() < 0.3:
            prompt = prompt[: rng.randint(1, len(prompt))] + tokens(5, rng.randint(0, 99))
        n = rng.choice((1, 1, 1, 3)) if self.samples else 1
        sequence = self.node.submit(
            prompt,
            rng.randint(1, 30 // n),
            priority=rng.choice((0, 0, 0, 1, -1)),
            cache=rng.random() > 0.1,
            temperature=1.0,
            n=n,
        )
        self.wanted[sequence.request.id] = sequence
        self.live.append(sequence)

    def _abort(self, rng: random.Random) -> None:
        if self.live and rng.random() < 0.04:
            sequence = rng.choice(self.live)
            self.aborted.add(sequence.request.id)
            self.node.abort(sequence)
            self.node.abort(sequence)

    def _pin(self, rng: random.Random) -> None:
        if rng.random() < 0.02:
            hits = self.node.pool.lookup(chain(tokens(16, seed=rng.randint(0, 6))))
            name = f"p{rng.randint(0, 3)}"
            self.node.memory.pins.pin(name, hits, rng.randint(0, 2), self.node.now + rng.random())

    def _loads(self, rng: random.Random) -> None:
        executor = self.node.executor
        executor.hold_loads = rng.random() < 0.5
        if rng.random() < 0.02:
            self.node.now += 20.0  # whatever is being loaded is overdue
        if rng.random() < 0.3:
            executor.finish_loads(whole=rng.random() > 0.2)


def test_twenty_thousand_steps_with_everything_on():
    node = MockNode(
        num_blocks=48,
        block_size=4,
        num_cpu_blocks=40,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        preemption=PreemptionMode.SWAP,
    )
    blast = Blast(node, seed=7)
    blast.run(20_000)
    blast.check()
    counters = node.counters
    assert counters.preempted_by_swap > 0
    assert counters.preempted_by_recompute > 0
    assert counters.preempted_for_priority > 0
    assert counters.hit_tokens > 0
    assert counters.loaded_tokens > 0
    assert counters.failed_loads > 0
    assert counters.overtakes > 0
    assert counters.prefix_waits > 0
    assert counters.steps_without_progress == 0
    assert node.memory.tier.offloaded_blocks > 0


@pytest.mark.parametrize("commitment", [Strict, Adaptive, Greedy, Static])
@pytest.mark.parametrize("cpu_blocks", [0, 20])
def test_every_policy_ends_every_request_once(commitment, cpu_blocks):
    node = MockNode(
        num_blocks=36,
        block_size=4,
        num_cpu_blocks=cpu_blocks,
        max_num_seqs=6,
        max_num_batched_tokens=16,
        commitment=commitment(),
        preemption=PreemptionMode.AUTO,
    )
    blast = Blast(node, seed=11)
    blast.run(1_500)
    blast.check()
    memory_preemptions = node.counters.preemptions - node.counters.preempted_for_priority
    assert (memory_preemptions == 0) is issubclass(commitment, Strict)

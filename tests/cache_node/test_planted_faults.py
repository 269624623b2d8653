"""Faults that a paged engine can have, planted: the blast and the state machine find them."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cache_node.block_pool import BlockPool
from cache_node.cpu_tier import CpuTier
from cache_node.loads import Loads
from cache_node.memory import KvMemory
from cache_node.preemption import Preempter, PreemptionMode
from cache_node.scheduler import Scheduler
from tests.cache_node.mock_node import MockNode
from tests.cache_node.node_machine import NodeMachine
from tests.cache_node.test_blast import Blast


def published_before_computed(patch):
    """A block can be hit while the step that fills it has not run."""
    start = KvMemory.start

    def early(self, sequence, reuse, step, now):
        ready = start(self, sequence, reuse, step, now)
        if ready and sequence.request.use_cache:
            whole = len(sequence.tokens) // self.pool.block_size
            contents = sequence.keys.extend_to(sequence.tokens, whole)
            for block, content in zip(sequence.block_table, contents, strict=False):
                self.pool.publish(block, content)
        return ready

    patch.setattr(KvMemory, "start", early)


def no_copy_on_write(patch):
    patch.setattr(KvMemory, "_is_shared", lambda self, block, step: False)


def fork_without_references(patch):
    patch.setattr(KvMemory, "fork", lambda self, seq, i: seq.fork(i, list(seq.block_table)))


def key_outlives_reuse(patch):
    def reuse(self):
        block = self._free.pop_first()
        self._evictable -= block.key is not None
        block.ref_count = 1
        return block.id

    patch.setattr(BlockPool, "_reuse", reuse)


def freed_twice(patch):
    finish = Scheduler.finish

    def twice(self, sequence, reason, now):
        table = list(sequence.block_table)
        finish(self, sequence, reason, now)
        self.memory.pool.free(table)

    patch.setattr(Scheduler, "finish", twice)


def never_freed_after_preemption(patch):
    preempt = Preempter.preempt

    def leak(self, sequence, step):
        self.memory.pool.share(sequence.block_table[:1])
        preempt(self, sequence, step)

    patch.setattr(Preempter, "preempt", leak)


def load_before_the_step(patch):
    """The load overwrites what the step was still to copy down."""
    start = Loads.start

    def unfenced(self, sequence, copies, tokens, now):
        start(self, sequence, copies, tokens, now)
        self.launch()

    patch.setattr(Loads, "start", unfenced)


def hit_before_the_offload_has_run(patch):
    add = CpuTier._add

    def early(self, source, place, content, held=False):
        add(self, source, place, content, held)
        if content is not None:
            self.pool.publish(place, content)

    patch.setattr(CpuTier, "_add", early)
    patch.setattr(CpuTier, "commit", lambda self: self._forget())
    patch.setattr(KvMemory, "_launch_loads", lambda self: None)
    patch.setattr(Loads, "start", _start_at_once(Loads.start))


def failed_load_counts_as_ready(patch):
    loaded = Scheduler.loaded
    patch.setattr(Scheduler, "loaded", lambda self, number, whole: loaded(self, number, True))


def _start_at_once(start):
    def at_once(self, sequence, copies, tokens, now):
        start(self, sequence, copies, tokens, now)
        self.launch()

    return at_once


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    published_before_computed,
    no_copy_on_write,
    fork_without_references,
    key_outlives_reuse,
    freed_twice,
    never_freed_after_preemption,
    load_before_the_step,
    hit_before_the_offload_has_run,
    failed_load_counts_as_ready,
]


FOUND = (AssertionError, ValueError, KeyError)
SEARCH = settings(
    max_examples=2_000,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def blast() -> None:
    node = MockNode(
        num_blocks=40,
        num_cpu_blocks=30,
        max_num_seqs=8,
        max_num_batched_tokens=24,
        preemption=PreemptionMode.SWAP,
    )
    run = Blast(node, seed=3)
    run.run(4_000)
    run.check()


def test_the_blast_passes_without_a_fault():
    blast()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(FOUND):
        blast()


# The blast alone finds a failed load that counts as ready in reasonable time: it takes a load that
# fails after a part of it was copied, of a prefix that another then asks for.
@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault is not failed_load_counts_as_ready]
)
def test_the_state_machine_finds_it_too(fault, monkeypatch):
    fault(monkeypatch)
    with pytest.raises(FOUND):
        run_state_machine_as_test(NodeMachine, settings=SEARCH)

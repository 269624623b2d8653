"""The engine's cases, with its real thread: A2, A11, A15, B8, B19, C8, F5, F9, F10."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cache_node.engine import Engine
from cache_node.limits import Counters
from cache_node.metrics import LoadCollector
from cache_node.preemption import PreemptionMode
from cache_node.sequence import State
from cache_node.step_output import StepOutput
from tests.cache_node.mock_node import MockNode, reference, tokens
from tests.cache_node.pool_content import chain


class NoText:
    """Stands in for OutputText: these tests look at tokens."""

    def push(self, token: int) -> tuple[str, None]:
        return "", None

    def flush(self) -> str:
        return ""


@dataclass
class Running:
    """A live engine over a mock node, its steps held at a gate."""

    node: MockNode
    outputs: list[StepOutput] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    in_step: threading.Event = field(default_factory=threading.Event)
    news: threading.Condition = field(default_factory=threading.Condition)
    died: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        compute = self.node.executor.run

        def run(plan):
            self.in_step.set()
            assert self.gate.wait(10)
            return compute(plan)

        self.node.executor.run = run
        self.engine = Engine(
            self.node.scheduler, self.node.executor, lambda: 0.0, self._deliver, self.died.set
        )
        self.engine.start()

    def submit(self, request) -> None:
        self.engine.submit(request, lambda _: NoText(), "router", 1)

    def ended(self, name: str) -> StepOutput:
        """Waits for the step output that ends `name`."""

        def found() -> StepOutput | None:
            for output in self.outputs:
                if name in {ended.request.id for ended in output.ended}:
                    return output
            return None

        with self.news:
            assert self.news.wait_for(found, 10)
        return found()

    def _deliver(self, output: StepOutput) -> None:
        with self.news:
            self.outputs.append(output)
            self.news.notify_all()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running(MockNode())
    yield running
    running.gate.set()
    running.engine.stop()
    assert not running.died.is_set()


def test_a2_prompt_and_output_that_cannot_fit_together_fail_that_request_only(running):
    running.gate.set()
    with pytest.raises(ValueError, match="need 70 blocks, the pool has 64"):
        running.node.submit(tokens(200), 80)
    request = running.node.request(tokens(20), 4)
    running.submit(request)
    assert running.ended(request.id).ended[0].error is None
    assert request.leader.output == reference(tokens(20), 4)


def test_a11_an_allocation_that_fails_for_long_is_counted_and_others_go_on():
    node = MockNode(num_blocks=20)
    long = node.submit(tokens(40), 36)
    node.step()
    huge = node.submit(tokens(60, 1), 4)
    small = [node.submit(tokens(4, seed), 2) for seed in range(2, 6)]
    while not all(seq.state is State.FINISHED for seq in small):
        assert node.step()
    assert huge.state is State.WAITING
    assert node.counters.overtakes >= 4
    node.run()
    assert long.output == reference(tokens(40), 36)
    assert huge.output == reference(tokens(60, 1), 4)


def test_a15_a_huge_request_at_the_head_is_passed_only_so_often():
    node = MockNode(num_blocks=24, limits={"max_overtakes": 3})
    node.submit(tokens(40), 48)
    node.step()
    huge = node.submit(tokens(60, 1), 4)
    small = [node.submit(tokens(4, seed), 2) for seed in range(2, 30)]
    node.run()
    passed = [seq for seq in small if seq.request.first_scheduled < huge.request.first_scheduled]
    assert len(passed) == node.counters.overtakes == 3


def test_b8_news_of_a_request_that_is_gone_are_dropped(running):
    running.gate.set()
    node = running.node
    node.scheduler.loaded(999, True)
    request = node.request(tokens(5), 3)
    running.submit(request)
    running.ended(request.id)
    assert running.engine.abort(request.id).result(10) is None
    assert running.engine.abort("never was").result(10) is None


def test_b19_what_a_failed_step_was_to_store_is_released_and_never_published():
    node = MockNode(num_blocks=14, num_cpu_blocks=20, preemption=PreemptionMode.SWAP)
    node.generate([*tokens(20), 1], 1)
    node.submit(tokens(50, seed=1), 2)
    node.now += 0.01
    step = node.scheduler.schedule(node.now)
    assert step.offloads
    node.scheduler.rollback(step)
    assert node.memory.tier.pool.lookup(chain(tokens(20))) == []
    for sequence in step.sequences:
        node.abort(sequence)
    node.assert_all_free()


def test_c8_a_request_cancelled_while_a_step_writes_keeps_its_blocks_until_the_step_is_over(
    running,
):
    request = running.node.request(tokens(20), 8)
    running.submit(request)
    assert running.in_step.wait(10)
    aborted = running.engine.abort(request.id)
    assert not aborted.done()
    assert running.node.pool.num_held == 5
    running.gate.set()
    assert aborted.result(10) is request
    violations, load = running.engine.check_integrity().result(10)
    assert violations == []
    assert load.held_blocks == 0


def test_f5_counters_that_would_go_down_break_nothing(running):
    load = running.engine.load()
    loads = iter([replace(load, counters=Counters(hit_tokens=5)), replace(load, steps=-1), load])
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LoadCollector(lambda: next(loads), 0))
    assert b"kvmesh_prefix_cache_hits_total 5.0" in generate_latest(registry)
    assert b"kvmesh_prefix_cache_hits_total 0.0" in generate_latest(registry)


def test_f9_requests_are_counted_by_how_they_ended():
    node = MockNode()
    node.generate(tokens(5), 3)
    node.abort(node.submit(tokens(5), 3))
    stopped = node.submit(tokens(6), 8)
    stopped.request.eos_token_ids = frozenset({reference(tokens(6), 1)[0]})
    node.run()
    counters = node.counters
    ended = (counters.finished_stop, counters.finished_length, counters.finished_abort)
    assert ended == (1, 1, 1)


def test_f10_usage_counts_referenced_blocks_not_cached_ones(running):
    running.gate.set()
    node = running.node
    request = node.request(tokens(20), 4)
    running.submit(request)
    running.ended(request.id)
    load = running.engine.call(running.engine.load).result(10)
    assert load.held_blocks == 0
    assert load.evictable_blocks > 0
    registry = CollectorRegistry()
    registry.register(LoadCollector(lambda: load, 0))
    assert b"kvmesh_kv_cache_usage_perc 0.0" in generate_latest(registry)

"""Any order of what can happen to a node, as hypothesis draws it."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache_node.preemption import PreemptionMode
from cache_node.sequence import Sequence
from tests.cache_node.mock_node import MockNode, reference, tokens
from tests.cache_node.pool_content import chain


class NodeMachine(RuleBasedStateMachine):
    """Submit, step (which appends, forks, grows, evicts, preempts, swaps), abort, pin, clear, and
    loads that are late, fail or hang. At the end everyone has the right tokens and nothing is held.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node = MockNode(
            num_blocks=20,
            num_cpu_blocks=16,
            max_num_seqs=6,
            max_num_batched_tokens=12,
            preemption=PreemptionMode.SWAP,
        )
        self.node.executor.hold_loads = True
        self.submitted: list[Sequence] = []
        self.aborted: set[str] = set()

    @rule(
        length=st.integers(1, 24),
        seed=st.integers(0, 1),
        max_tokens=st.integers(1, 12),
        n=st.sampled_from([1, 1, 3]),
        priority=st.integers(0, 1),
        cache=st.sampled_from([True, True, True, False]),
    )
    def submit(self, length, seed, max_tokens, n, priority, cache) -> None:
        sequence = self.node.submit(
            tokens(24, seed)[:length],
            max_tokens,
            n=n,
            temperature=1.0,
            priority=priority,
            cache=cache,
        )
        self.submitted.append(sequence)

    @rule(count=st.integers(1, 6))
    def step(self, count) -> None:
        for _ in range(count):
            if self.node.scheduler.has_work:
                assert self.node.step() or self.node.scheduler.roster.loading or self._hangs

    @precondition(lambda self: self.submitted)
    @rule(data=st.data())
    def abort(self, data) -> None:
        sequence = data.draw(st.sampled_from(self.submitted))
        if sequence.request.unfinished:
            self.aborted.add(sequence.request.id)
        self.node.abort(sequence)

    @rule(whole=st.booleans())
    def finish_loads(self, whole) -> None:
        self.node.executor.finish_loads(whole)

    @rule()
    def wait(self) -> None:
        self.node.now += 10.0

    @rule(seed=st.integers(0, 1), blocks=st.integers(1, 6), priority=st.integers(0, 1))
    def pin(self, seed, blocks, priority) -> None:
        hits = self.node.pool.lookup(chain(tokens(24, seed))[:blocks])
        self.node.memory.pins.pin(f"pin{priority}", hits, priority, self.node.now + 5.0)

    @rule()
    def clear(self) -> None:
        self.node.pool.clear_cache()

    @invariant()
    def sound(self) -> None:
        assert self.node.scheduler.check_integrity() == []

    def teardown(self) -> None:
        while self.node.memory.pins.yield_one():
            pass
        self.node.executor.hold_loads = False
        self.node.executor.finish_loads()
        self.node.run()
        self.node.assert_all_free()
        for sequence in self.submitted:
            request = sequence.request
            if request.id not in self.aborted:
                for sample in range(request.samples):
                    output = self.node.finished[request.id, sample].output
                    assert output == reference(request.prompt, sequence.params.max_tokens, sample)

    @property
    def _hangs(self) -> bool:
        """Loads that were given up hold blocks until they end: then nobody may fit."""
        return self.node.memory.loads.hanging

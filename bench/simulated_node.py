"""A cache node on a virtual clock: the real block pool and event log, no model."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from cache_node.block_pool import BlockPool
from cache_node.key_chain import BlockContent
from cache_node.step_plan import BlockId
from kvmesh.v1.cache_node_pb2 import TIER_GPU, NodeLoad
from prefix_index.event_log import EventLog
from prefix_index.events import Event

# Of one large accelerator with a model of some 8 B parameters, roughly.
PREFILL_SPEED = 12_000.0  # tokens a second
TOKEN_SECONDS = 0.025  # a decode step


class VirtualClock:
    """Calls what is due, in the order of its time, and then of being asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now + seconds, next(self._order), call))

    def run(self) -> None:
        while self._due:
            self.now, _, call = heapq.heappop(self._due)
            call()


@dataclass(slots=True, eq=False)
class Work:
    """A request on the node. `on_first` and `on_end` are told to whoever sent it."""

    sequence: int  # the router's dispatch
    chain: list[BlockContent]  # of the blocks that may be hit
    prompt_tokens: int
    output_tokens: int
    on_first: Callable[[], None]
    on_end: Callable[[], None]
    table: list[BlockId] = field(default_factory=list)


class SimulatedNode:
    """Prefills one prompt after the other, decodes all beside each other; evicts as a node does.

    Owns pool and log. What changed is told by `on_change`, as seldom as the state stream.
    """

    def __init__(
        self, num_blocks: int, block_size: int, clock: VirtualClock, on_change: Callable[[], None]
    ) -> None:
        self._events: list[Event] = []
        self.pool = BlockPool(num_blocks, block_size, TIER_GPU, self._events)
        self.log = EventLog(epoch=1)
        self.hit_tokens = self.prefilled_tokens = 0
        self._clock = clock
        self._on_change = on_change
        self._waiting: deque[Work] = deque()
        self._prefilling: Work | None = None
        self._to_prefill = 0  # tokens of it
        self._decoding = 0
        self._last_sequence = 0

    def submit(self, work: Work) -> None:
        self._last_sequence = work.sequence
        self._waiting.append(work)
        self._start_next()
        self._on_change()

    def load(self) -> NodeLoad:
        """As in the node's state stream."""
        queued = sum(work.prompt_tokens for work in self._waiting) + self._to_prefill
        return NodeLoad(
            committed_blocks=self.pool.num_held + self._to_come(),
            growth_share=1.0,
            free_blocks=self.pool.num_free - self.pool.num_evictable,
            evictable_blocks=self.pool.num_evictable,
            running=self._decoding + (self._prefilling is not None),
            waiting=len(self._waiting),
            queued_prefill_tokens=queued,
            prefill_tokens_per_second=PREFILL_SPEED,
            last_dispatch_sequence=self._last_sequence,
        )

    def _to_come(self) -> int:
        """Blocks that the waiting requests will take."""
        sizes = (work.prompt_tokens + work.output_tokens for work in self._waiting)
        return sum(map(self.pool.blocks_for, sizes))

    def _start_next(self) -> None:
        if self._prefilling is not None or not self._waiting:
            return
        work = self._waiting[0]
        hits = self.pool.lookup(work.chain)
        total = self.pool.blocks_for(work.prompt_tokens + work.output_tokens)
        table = self.pool.allocate(total - len(hits), hits)
        if table is None:
            return  # until a request ends
        self._prefilling = self._waiting.popleft()
        work.table = table
        self._to_prefill = work.prompt_tokens - len(hits) * self.pool.block_size
        self.hit_tokens += len(hits) * self.pool.block_size
        self.prefilled_tokens += self._to_prefill
        self._clock.after(self._to_prefill / PREFILL_SPEED, lambda: self._prefilled(work))

    def _prefilled(self, work: Work) -> None:
        for block, content in zip(work.table, work.chain, strict=False):
            if self.pool.find(content) is None:
                self.pool.publish(block, content)
        self._prefilling, self._to_prefill = None, 0
        self._decoding += 1
        self._clock.after(work.output_tokens * TOKEN_SECONDS, lambda: self._end(work))
        work.on_first()
        self._step()

    def _end(self, work: Work) -> None:
        self._decoding -= 1
        self.pool.free(work.table)
        work.on_end()
        self._step()

    def _step(self) -> None:
        self._start_next()
        self.log.append(self._events)
        self._events.clear()
        self._on_change()

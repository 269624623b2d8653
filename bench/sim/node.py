"""A cache node on a virtual clock: the real scheduler, memory and event log, and no model."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from bench.sim.config import SCHEDULING
from bench.sim.quiet import pass_quietly, quiet_steps
from bench.sim.step_model import StepModel, shape_of
from bench.trivial_executor import TOKEN
from cache_node.commitment import Adaptive, Commitment, Strict
from cache_node.limits import Limits
from cache_node.memory import KvMemory
from cache_node.preemption import PreemptionCosts, PreemptionMode
from cache_node.sampling import Choice
from cache_node.scheduler import Scheduler
from cache_node.sequence import Request
from cache_node.speed import SpeedMeter
from cache_node.step import Step
from cache_node.step_plan import RowResult
from kvmesh.v1 import cache_node_pb2
from prefix_index.event_log import EventLog

COMMITMENTS: dict[str, type[Commitment]] = dict(zip(SCHEDULING, (Adaptive, Strict), strict=True))
CHOICE = Choice(TOKEN)  # of everybody, always
CHOSEN, NOTHING_YET = RowResult([CHOICE]), RowResult()
POLL = 0.005  # seconds until the next look when nobody who waits can start, as the engine's


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """What nodes are like. `skip`: quiet steps are passed together, which changes nothing."""

    num_blocks: int
    block_size: int
    scheduling_policy: str = "adaptive"
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 1024
    skip: bool = True


class Caller(Protocol):
    """Who sent a request, and hears of it. `refuse` and `lose` are the last word, as `end` is."""

    request: Request

    def begin(self) -> None: ...

    def end(self) -> None: ...

    def refuse(self, reason: str) -> None: ...

    def lose(self) -> None: ...


class SimNode:
    """Takes what came between two steps, plans a step, and books it when its time is over.

        submit / abort ──▶ between steps ──schedule──▶ step ──its seconds──▶ commit ──▶ …
                                            └─quiet──▶ many steps, cut short by what comes ─┘

    `on_change` is called whenever its load or its cache may have changed.
    """

    def __init__(self, name: str, spec: NodeSpec, model: StepModel) -> None:
        self.name = name
        self.spec = spec
        self.on_change: Callable[[], None] = _nobody
        self.computed_tokens = 0  # of prompts, in all its lives
        self.preemptions = 0  # in lives that have ended
        self._model = model
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.epoch = 0
        self.start()

    def start(self) -> None:
        """A new life, with nothing of an older one."""
        spec = self.spec
        self.epoch += 1
        self.commitment = COMMITMENTS[spec.scheduling_policy]()
        self.scheduler = Scheduler(
            KvMemory(spec.num_blocks, spec.block_size),
            Limits(
                max_num_seqs=spec.max_num_seqs, max_num_batched_tokens=spec.max_num_batched_tokens
            ),
            self.commitment,
            PreemptionCosts(PreemptionMode.RECOMPUTE, bytes_per_block=1),
        )
        self.log = EventLog(self.epoch)
        self._speed = SpeedMeter()
        self._callers: dict[str, Caller] = {}
        self._commands: list[Callable[[], None]] = []
        self._ends: list[float] = []  # of the quiet steps that pass now
        self._last_dispatch = 0

    def fail(self) -> None:
        """Its process is gone, with all that it held. Callers hear of it at once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._book(bisect_right(self._ends, self._loop.time()))
        self.preemptions += self.scheduler.counters.preemptions
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            caller.lose()

    def submit(self, caller: Caller, dispatch: int) -> None:
        """Queues the caller's request; `dispatch` is the router's count."""
        self._callers[caller.request.id] = caller
        self._between_steps(lambda: self._submit(caller, dispatch))

    def abort(self, request: Request) -> None:
        """Its caller wants no more of it. Does nothing for one that has ended."""
        if self._callers.pop(request.id, None) is not None:
            self._between_steps(lambda: self._abort(request.id))

    def load(self) -> cache_node_pb2.NodeLoad:
        """As in the node's state stream."""
        roster, pool = self.scheduler.roster, self.scheduler.memory.pool
        return cache_node_pb2.NodeLoad(
            committed_blocks=self.scheduler.committed_blocks,
            growth_share=self.scheduler.growth_share,
            free_blocks=pool.num_free - pool.num_evictable,
            evictable_blocks=pool.num_evictable,
            running=len(roster.running),
            waiting=len(roster.waiting),
            queued_prefill_tokens=roster.queued_prefill_tokens,
            prefill_tokens_per_second=self._speed.prefill,
            last_dispatch_sequence=self._last_dispatch,
        )

    def _submit(self, caller: Caller, dispatch: int) -> None:
        self._last_dispatch = max(self._last_dispatch, dispatch)
        try:
            self.scheduler.submit(caller.request)
        except ValueError as error:
            del self._callers[caller.request.id]
            caller.refuse(str(error))

    def _abort(self, request_id: str) -> None:
        self.scheduler.abort(request_id, self._loop.time())

    def _between_steps(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        if self._timer is None:
            self._next()
        elif self._ends:
            self._cut_short()

    def _next(self) -> None:
        """Plans what comes after a step, or after nothing."""
        self._timer = None
        commands, self._commands = self._commands, []
        for command in commands:
            command()
        if commands and not self.scheduler.has_work:
            self._changed()
        if not self.scheduler.has_work:
            return
        quiet = quiet_steps(self.scheduler) if self.spec.skip else 0
        if quiet > 1:
            self._pass(quiet)
        else:
            self._step()

    def _step(self) -> None:
        now = self._loop.time()
        step = self.scheduler.schedule(now)
        if not step.rows:
            self._timer = self._loop.call_at(now + POLL, self._next)
            return
        seconds = self._model.seconds(shape_of(step.rows))
        self._timer = self._loop.call_at(now + seconds, self._commit, step, seconds)

    def _commit(self, step: Step, seconds: float) -> None:
        now = self._loop.time()
        results = [CHOSEN if row.samples else NOTHING_YET for row in step.rows]
        sampled = self.scheduler.commit(step, results, now)
        self._speed.record(step.plan, seconds)
        self.scheduler.costs.prefill_tokens_per_second = self._speed.prefill
        self.computed_tokens += sum(len(r.token_ids) for r in step.rows if len(r.token_ids) > 1)
        for each in sampled:
            request = each.sequence.request
            caller = self._callers.get(request.id)
            if each.finish_reason is not None:
                self.scheduler.finish(each.sequence, each.finish_reason, now)
            if caller is None:
                continue
            caller.begin()
            if each.finish_reason is not None:
                del self._callers[request.id]
                caller.end()
        self._changed()
        self._next()

    def _pass(self, steps: int) -> None:
        """Lets quiet steps go by, unless something comes."""
        running = self.scheduler.roster.running
        rows, reads = len(running), sum(each.num_computed + 1 for each in running)
        seconds = self._model.decoding(rows, reads, steps)
        self._ends = list(accumulate(seconds, initial=self._loop.time()))[1:]
        self._timer = self._loop.call_at(self._ends[-1], self._passed)

    def _passed(self) -> None:
        self._book(len(self._ends))
        self._changed()
        self._next()

    def _cut_short(self) -> None:
        """The step that runs now is the last one."""
        assert self._timer is not None
        self._timer.cancel()
        del self._ends[bisect_right(self._ends, self._loop.time()) + 1 :]
        self._timer = self._loop.call_at(self._ends[-1], self._passed)

    def _book(self, steps: int) -> None:
        """So many of the quiet steps have ended."""
        pass_quietly(self.scheduler, self.commitment, CHOICE, steps)
        self._ends = []

    def _changed(self) -> None:
        self.log.append(self.scheduler.memory.drain_events())
        self.on_change()


def _nobody() -> None:
    """Nobody watches."""

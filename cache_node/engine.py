"""The engine: one thread that turns queued requests into tokens, step after step."""

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import structlog

from cache_node.output_text import OutputText
from cache_node.request_output import RequestOutput
from cache_node.scheduler import Sampled, Scheduler
from cache_node.sequence import Request
from cache_node.speed import SpeedMeter
from cache_node.step import Step
from cache_node.step_output import Delta, Ended, Load, StepOutput
from cache_node.step_plan import Executor
from cache_node.timings import Timings

T = TypeVar("T")
log = structlog.get_logger()

MAX_ROUTERS = 256  # whose last dispatch is remembered
LOAD_POLL = 0.005  # seconds between looks at the deadlines of loads, when nothing else is to do


class Engine:
    """Owns the scheduler and the executor; everything that touches them runs on its thread.

    Other threads hand it work with `call`, which runs between two steps, and hear of tokens through
    `deliver`, which is called on the engine's thread once a step. `on_death` is called there if the
    thread ends by a fault of its own: a failed step is none, a broken invariant is.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        clock: Callable[[], float],
        deliver: Callable[[StepOutput], None],
        on_death: Callable[[], None],
    ) -> None:
        self._scheduler = scheduler
        self.timings = Timings()
        self._executor = executor
        self._clock = clock
        self._deliver = deliver
        self._on_death = on_death
        self._outputs: dict[str, RequestOutput] = {}
        self._speed = SpeedMeter()
        self._steps = 0
        self._last_dispatch: dict[str, int] = {}
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._idle = True
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        scheduler.memory.on_loaded(self._loaded)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the step that runs. Live requests stay as they are."""
        self._commands.put(self._stop)
        self._thread.join()

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Runs `function` on the engine's thread between two steps."""
        future: Future[T] = Future()

        def command() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # noqa: BLE001  the caller's to handle
                future.set_exception(error)

        self._commands.put(command)
        return future

    def submit(
        self, request: Request, make_text: Callable[[int], OutputText], router: str, dispatch: int
    ) -> None:
        """Queues a request, whose tokens then arrive through `deliver`, as does the error if it
        cannot be queued. `make_text` is called once a sample, with its index.
        """
        output = RequestOutput(request, make_text)
        self._commands.put(lambda: self._submit(output, router, dispatch))

    def abort(self, request_id: str) -> Future[Request | None]:
        """Ends a request wherever it is; the request if there was one. `deliver` does not hear of
        it.
        """
        return self.call(lambda: self._abort(request_id))

    def pin(
        self, name: str, keys: Sequence[bytes], priority: int, ttl: float | None
    ) -> Future[int]:
        """Pins cached blocks by key; how many."""
        pins = self._scheduler.memory.pins
        expires = None if ttl is None else self._clock() + ttl
        return self.call(lambda: pins.pin_keys(name, keys, priority, expires))

    def unpin(self, name: str) -> Future[bool]:
        return self.call(lambda: self._scheduler.memory.pins.unpin(name))

    def clear_cache(self, pins: bool) -> Future[int]:
        """Forgets what is cached, see `KvMemory.clear_cache`; how many blocks."""
        return self.call(lambda: self._scheduler.memory.clear_cache(pins))

    def check_integrity(self) -> Future[tuple[list[str], Load]]:
        return self.call(lambda: (self._scheduler.check_integrity(), self.load()))

    def load(self) -> Load:
        """Of now. On the engine's thread, or before it starts."""
        roster, pool = self._scheduler.roster, self._scheduler.memory.pool
        tier, loads = self._scheduler.memory.tier, self._scheduler.memory.loads
        return Load(
            committed_blocks=self._scheduler.committed_blocks,
            growth_share=self._scheduler.growth_share,
            held_blocks=pool.num_held,
            free_blocks=pool.num_free - pool.num_evictable,
            evictable_blocks=pool.num_evictable,
            cpu_held_blocks=tier.pool.num_held if tier else 0,
            cpu_cached_blocks=tier.pool.num_evictable if tier else 0,
            cpu_free_blocks=tier.pool.num_free - tier.pool.num_evictable if tier else 0,
            offloaded_blocks=tier.offloaded_blocks if tier else 0,
            loaded_blocks=loads.loaded_blocks if loads is not None else 0,
            running=len(roster.running),
            waiting=len(roster.waiting) + len(roster.loading),
            queued_prefill_tokens=roster.queued_prefill_tokens,
            prefill_tokens_per_second=self._speed.prefill,
            decode_tokens_per_second=self._speed.decode,
            steps=self._steps,
            counters=replace(self._scheduler.counters),
            last_dispatch=dict(self._last_dispatch),
        )

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._take_commands() and not self._scheduler.has_work:
                    self._report([], [])
                if self._scheduler.has_work and not self._stopping:
                    self._idle = not self._step()
        except Exception:
            log.exception("engine_died")
            self._on_death()

    def _take_commands(self) -> bool:
        """Runs what was asked for; waits for it when there is nothing else to do. Whether anything
        was.
        """
        taken = False
        with suppress(queue.Empty):
            if not self._scheduler.has_work:
                self._commands.get()()
                taken = True
            elif self._idle:
                self._commands.get(timeout=LOAD_POLL)()
                taken = True
            while True:
                self._commands.get_nowait()()
                taken = True
        return taken

    def _step(self) -> bool:
        """Plans, computes and books one step. Whether there was anything to compute."""
        start = self._clock()
        step = self._scheduler.schedule(start)
        try:
            results = self._executor.run(step.plan)
        except Exception as error:
            log.exception("step_failed", rows=len(step.rows), tokens=step.plan.num_tokens)
            self._report([], self._fail(step, error))
            return True
        now = self._clock()
        sampled = self._scheduler.commit(step, results, now)
        if step.rows:
            self._steps += 1
            self._speed.record(step.plan, now - start)
            self.timings.stepped(step.plan.num_tokens, sampled, start, now)
            self._scheduler.costs.prefill_tokens_per_second = self._speed.prefill
            deltas = [delta for choice in sampled for delta in self._news(choice, now)]
            ended = self._take_ended(sampled)
            self.timings.ended(ended)
            self._report(deltas, ended)
        return bool(step.rows)

    def _news(self, sampled: Sampled, now: float) -> list[Delta]:
        """A chosen token as news; ends the sample when the token or its text says so."""
        output = self._outputs[sampled.sequence.request.id]
        delta = output.push(sampled)
        if delta.finish_reason is not None:
            self._scheduler.finish(sampled.sequence, delta.finish_reason, now)
        return output.release(delta)

    def _take_ended(self, sampled: list[Sampled]) -> list[Ended]:
        ended = {s.sequence.request.id: s.sequence.request for s in sampled}
        return [
            Ended(self._outputs.pop(name).request)
            for name, request in ended.items()
            if request.unfinished == 0
        ]

    def _fail(self, step: Step, error: Exception) -> list[Ended]:
        """Ends the requests of a failed step; their blocks were not published, so nothing wrong can
        be hit.
        """
        self._scheduler.rollback(step)
        names = {sequence.request.id for sequence in step.sequences}
        aborted = [request for name in names if (request := self._abort(name)) is not None]
        return [Ended(each, f"the step failed on the device: {error}") for each in aborted]

    def _report(self, deltas: list[Delta], ended: list[Ended]) -> None:
        events = self._scheduler.memory.drain_events()
        self._deliver(StepOutput(deltas=deltas, ended=ended, events=events, load=self.load()))

    def _submit(self, output: RequestOutput, router: str, dispatch: int) -> None:
        try:
            self._scheduler.submit(output.request)
        except ValueError as error:
            self._report([], [Ended(output.request, str(error))])
            return
        self._outputs[output.request.id] = output
        # A client may take its time with a lease, so that dispatches come out of order.
        last = self._last_dispatch.pop(router, 0)
        self._last_dispatch[router] = max(last, dispatch)
        if len(self._last_dispatch) > MAX_ROUTERS:
            del self._last_dispatch[next(iter(self._last_dispatch))]

    def _abort(self, request_id: str) -> Request | None:
        self._outputs.pop(request_id, None)
        return self._scheduler.abort(request_id, self._clock())

    def _loaded(self, number: int, whole: bool) -> None:
        """Called by the loader, on its own thread."""
        self._commands.put(lambda: self._scheduler.loaded(number, whole))

    def _stop(self) -> None:
        self._stopping = True

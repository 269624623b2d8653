"""The engine: one thread that turns queued sequences into tokens, step after step."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import structlog

from cache_node.output_text import OutputText
from cache_node.scheduler import Sampled, Scheduler, Step
from cache_node.sequence import FinishReason, Sequence
from cache_node.speed import SpeedMeter
from cache_node.step_output import Delta, Load, StepOutput
from cache_node.step_plan import Executor

T = TypeVar("T")
log = structlog.get_logger()

MAX_ROUTERS = 256  # whose last dispatch is remembered


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
        self._executor = executor
        self._clock = clock
        self._deliver = deliver
        self._on_death = on_death
        self._texts: dict[str, OutputText] = {}
        self._speed = SpeedMeter()
        self._steps = 0
        self._last_dispatch: dict[str, int] = {}
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the step that runs. Live sequences stay as they are."""
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

    def submit(self, sequence: Sequence, text: OutputText, router: str, dispatch: int) -> None:
        """Queues a sequence, whose tokens then arrive through `deliver`, as does the error if it
        cannot be queued.
        """
        self._commands.put(lambda: self._submit(sequence, text, router, dispatch))

    def abort(self, request_id: str) -> Future[Sequence | None]:
        """Ends a request wherever it is; the sequence if there was one. `deliver` does not hear of
        it.
        """
        return self.call(lambda: self._abort(request_id))

    def check_integrity(self) -> Future[tuple[list[str], Load]]:
        return self.call(lambda: (self._scheduler.check_integrity(), self.load()))

    def _run(self) -> None:
        try:
            while not self._stopping:
                if self._take_commands() and not self._scheduler.has_work:
                    self._report([])
                if self._scheduler.has_work and not self._stopping:
                    self._step()
        except Exception:
            log.exception("engine_died")
            self._on_death()

    def _take_commands(self) -> bool:
        """Runs what was asked for; waits for it when there is nothing else to do. Whether anything
        was.
        """
        if self._scheduler.has_work and self._commands.empty():
            return False
        self._commands.get()()
        while not self._commands.empty():
            self._commands.get()()
        return True

    def _step(self) -> None:
        start = self._clock()
        step = self._scheduler.schedule(start)
        try:
            tokens = self._executor.run(step.plan)
        except Exception as error:
            log.exception("step_failed", rows=len(step.rows), tokens=step.plan.num_tokens)
            self._report(self._fail(step, error))
            return
        now = self._clock()
        self._steps += 1
        self._speed.record(step.plan, now - start)
        sampled = self._scheduler.commit(step, tokens, now)
        self._report([self._delta(choice, now) for choice in sampled])

    def _delta(self, choice: Sampled, now: float) -> Delta:
        """One chosen token as news; ends the sequence when the token or its text says so."""
        sequence, reason = choice.sequence, choice.finish_reason
        output = self._texts[sequence.request_id]
        if reason is FinishReason.STOP:
            text, stop = output.flush(), None
        else:
            text, stop = output.push(choice.token)
        if stop is not None:
            reason = FinishReason.STOP
        elif reason is FinishReason.LENGTH:
            text += output.flush()
        if reason is None:
            return Delta(sequence.request_id, choice.token, text)
        self._scheduler.finish(sequence, reason, now)
        del self._texts[sequence.request_id]
        return Delta(
            sequence.request_id, choice.token, text, ended=sequence, stop_reason=stop or ""
        )

    def _fail(self, step: Step, error: Exception) -> list[Delta]:
        """Ends the sequences of a failed step; their blocks were not published, so nothing wrong
        can be hit.
        """
        deltas = []
        for sequence in step.sequences:
            self._abort(sequence.request_id)
            deltas.append(
                Delta(sequence.request_id, error=f"the step failed on the device: {error}")
            )
        return deltas

    def _report(self, deltas: list[Delta]) -> None:
        self._deliver(StepOutput(deltas, self._scheduler.pool.drain_events(), self.load()))

    def _submit(self, sequence: Sequence, text: OutputText, router: str, dispatch: int) -> None:
        try:
            self._scheduler.submit(sequence)
        except ValueError as error:
            self._report([Delta(sequence.request_id, error=str(error))])
            return
        self._texts[sequence.request_id] = text
        self._last_dispatch.pop(router, None)
        self._last_dispatch[router] = dispatch
        if len(self._last_dispatch) > MAX_ROUTERS:
            del self._last_dispatch[next(iter(self._last_dispatch))]

    def _abort(self, request_id: str) -> Sequence | None:
        self._texts.pop(request_id, None)
        return self._scheduler.abort(request_id, self._clock())

    def _stop(self) -> None:
        self._stopping = True

    def load(self) -> Load:
        """Of now. On the engine's thread, or before it starts."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        return Load(
            held_blocks=pool.num_held,
            free_blocks=pool.num_free - pool.num_evictable,
            evictable_blocks=pool.num_evictable,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            queued_prefill_tokens=scheduler.queued_prefill_tokens,
            prefill_tokens_per_second=self._speed.prefill,
            decode_tokens_per_second=self._speed.decode,
            steps=self._steps,
            steps_without_progress=scheduler.steps_without_progress,
            preemptions=scheduler.preemptions,
            queried_tokens=scheduler.queried_tokens,
            hit_tokens=scheduler.hit_tokens,
            last_dispatch=dict(self._last_dispatch),
        )

"""As many requests as are wanted from a recorded trace, as often as they are wanted."""

import heapq
import random
from collections.abc import Iterator, Sequence
from itertools import count, islice
from statistics import fmean
from typing import NamedTuple

from bench.load.plan import Plan, Turn
from bench.load.prompt import Piece, Prompt
from bench.sim.step_model import Shape, StepModel
from bench.trace import BLOCK_SIZE, TracedRequest

CHUNK = 1024  # tokens of a prompt in a step
BESIDE = 8  # requests that decode together


class Scale(NamedTuple):
    """`copies` of the trace run beside each other, each `speed` times as fast as recorded."""

    copies: int
    speed: float


def trace_rate(trace: Sequence[TracedRequest]) -> float:
    """Requests a second."""
    return len(trace) / max(trace[-1].arrival - trace[0].arrival, 1e-9)


def scale_to(trace: Sequence[TracedRequest], rate: float) -> Scale:
    """For `rate` requests a second: as many copies as come near, and a speed for the rest."""
    own = trace_rate(trace)
    copies = max(1, round(rate / own))
    return Scale(copies, rate / (copies * own))


def scaled_plan(
    trace: Sequence[TracedRequest], requests: int, rate: float, length_scale: float, seed: int
) -> Plan:
    """The first `requests` of all copies. A copy starts at a drawn place of the trace, goes on from
    its beginning, and shares prompts with no other copy nor with its own round before.
    """
    scale, draw = scale_to(trace, rate), random.Random(f"{seed} trace")
    starts = [draw.randrange(len(trace)) for _ in range(scale.copies)]
    merged = heapq.merge(
        *(_copy(trace, copy, start, scale.speed) for copy, start in enumerate(starts))
    )
    writer = _Writer(length_scale)
    turns = [
        Turn(
            number,
            number,
            writer.prompt(trace[place], world, number),
            max(1, round(trace[place].output_tokens * length_scale)),
            None,
            arrival,
        )
        for number, (arrival, world, place) in enumerate(islice(merged, requests))
    ]
    return Plan(turns)


def _copy(
    trace: Sequence[TracedRequest], copy: int, start: int, speed: float
) -> Iterator[tuple[float, str, int]]:
    """Arrival, what the prompts share blocks in, place in the trace; without end."""
    length = trace[-1].arrival - trace[0].arrival + 1 / trace_rate(trace)
    for lap in count():
        for place in range(start if lap == 0 else 0, len(trace)):
            after = trace[place].arrival - trace[start].arrival + lap * length
            yield after / speed, f"{copy}.{lap}", place


class _Writer:
    """Prompts as pieces; equal ones are one object, a trace repeats them a lot."""

    def __init__(self, length_scale: float) -> None:
        self._scale = length_scale
        self._size = max(1, round(BLOCK_SIZE * length_scale))
        self._pieces: dict[tuple[str, int], Piece] = {}

    def prompt(self, request: TracedRequest, world: str, number: int) -> Prompt:
        total = max(1, round(request.prompt_tokens * self._scale))
        if not request.blocks:  # nothing is known of what it shares
            return (Piece(f"user/{number}", total),)
        full = [self._piece(world, block) for block in request.blocks[:-1]]
        rest = min(self._size, max(1, total - len(full) * self._size))
        return (*full, Piece(f"{world}/{request.blocks[-1]}", rest))

    def _piece(self, world: str, block: int) -> Piece:
        key = world, block
        if key not in self._pieces:
            self._pieces[key] = Piece(f"{world}/{block}", self._size)
        return self._pieces[key]


def half_busy(trace: Sequence[TracedRequest], nodes: int, model: StepModel, scale: float) -> float:
    """Requests a second that keep nodes busy half of the time, if nothing is cached and each has
    its node for itself.
    """
    seconds = fmean(_alone(each, model, scale) for each in trace)
    return 0.5 * nodes / seconds


def _alone(request: TracedRequest, model: StepModel, scale: float) -> float:
    """Seconds of a node, in chunks as large as most steps; output beside seven others."""
    prompt = max(1, round(request.prompt_tokens * scale))
    output = max(1, round(request.output_tokens * scale))
    steps = -(-prompt // CHUNK)
    read = prompt + output // 2
    decode = model.seconds(Shape(decode_rows=BESIDE, decode_reads=BESIDE * read)) / BESIDE
    chunks = model.seconds(Shape(prompt, prompt * prompt // 2)) + (steps - 1) * model.step
    return chunks + output * decode

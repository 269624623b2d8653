"""The traditional way: memory for the longest answer from the start, and static batches."""

from collections.abc import Sequence
from itertools import islice

from bench.baselines.job import Job, Machine, Served, row
from cache_node.step_plan import StepPlan


def contiguous(machine: Machine, jobs: Sequence[Job]) -> Served:
    """As many jobs at once as have room for `max_model_len` tokens each, in neighbouring blocks. A
    batch keeps its shape until its longest answer ends; the next one begins then.
    """
    served = Served.begin(machine, jobs)
    slots, waiting = machine.blocks // machine.width, iter(enumerate(jobs))
    while batch := list(islice(waiting, slots)):
        _Batch(machine, served, batch).run()
    return served


class _Batch:
    def __init__(self, machine: Machine, served: Served, batch: list[tuple[int, Job]]) -> None:
        self._machine, self._served, self._batch = machine, served, batch
        starts = (1 + place * machine.width for place in range(len(batch)))
        self._tables = [range(start, start + machine.width) for start in starts]
        self._last = [0] * len(batch)  # token of each

    def run(self) -> None:
        prompts = [(job.prompt, 0) for _, job in self._batch]
        for place in range(len(prompts)):  # prompts one after the other, as they come
            self._step([place], prompts[place : place + 1])
        everyone = range(len(self._batch))
        for done in range(1, max(job.output for _, job in self._batch)):
            rows = [
                ((self._last[place],), len(job.prompt) + done - 1)
                for place, (_, job) in enumerate(self._batch)
            ]
            self._step(everyone, rows)

    def _step(self, places: Sequence[int], rows: Sequence[tuple[Sequence[int], int]]) -> None:
        plan = StepPlan(
            [
                row(tokens, start, self._tables[place])
                for place, (tokens, start) in zip(places, rows, strict=True)
            ]
        )
        results = self._machine.executor.run(plan)
        now = self._machine.clock()
        self._served.step(plan)
        for place, result in zip(places, results, strict=True):
            number, job = self._batch[place]
            self._last[place] = result.choices[0].token
            if len(self._served.answers[number]) < job.output:  # else it is padding by now
                self._served.token(number, self._last[place], now)

"""No KV cache: every token of an answer computes all tokens before it again."""

from collections.abc import Sequence

from bench.baselines.job import Job, Machine, Served, row
from cache_node.step_plan import StepPlan


def no_cache(machine: Machine, jobs: Sequence[Job]) -> Served:
    """All jobs in turns, a token each. What the kernels write to the pool is never read again."""
    served = Served.begin(machine, jobs)
    scratch = range(1, 1 + machine.width)
    longest = max(job.output for job in jobs)
    for place in range(longest):
        for number, job in enumerate(jobs):
            if place < job.output:
                tokens = [*job.prompt, *served.answers[number]]
                plan = StepPlan([row(tokens, 0, scratch)])
                (result,) = machine.executor.run(plan)
                served.step(plan)
                served.token(number, result.choices[0].token, machine.clock())
    served.most = len(jobs)
    return served

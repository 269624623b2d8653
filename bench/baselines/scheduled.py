"""kvmesh's own scheduler and paged memory, with as much of its prefix cache as is wanted."""

from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b

from bench.baselines.job import Job, Machine, Served
from cache_node.key_chain import KeyChain
from cache_node.sampling import SamplingParams
from cache_node.scheduler import Scheduler
from cache_node.scheduling import make_scheduler
from cache_node.sequence import Request
from kvmesh.packing import pack_tokens
from prefix_index.keys import KEY_BYTES

Root = Callable[[Job], bytes]
"""Prompts with one root share the blocks that they have in common."""


def _one_root(_job: Job) -> bytes:
    return bytes(KEY_BYTES)


def _root_of_prompt(job: Job) -> bytes:
    return blake2b(pack_tokens(job.prompt), digest_size=KEY_BYTES).digest()


def _scheduled(machine: Machine, jobs: Sequence[Job], *, root: Root, use_cache: bool) -> Served:
    served = Served.begin(machine, jobs)
    scheduler = make_scheduler(machine.config, machine.executor)
    for number, job in enumerate(jobs):
        scheduler.submit(_request(number, job, root, use_cache, machine.config.block_size))
    while scheduler.has_work:
        _step(machine, scheduler, served)
    return served


def _request(number: int, job: Job, root: Root, use_cache: bool, block_size: int) -> Request:
    return Request(
        id=str(number),
        prompt=job.prompt,
        params=SamplingParams(max_tokens=job.output, temperature=0.0, ignore_eos=True),
        eos_token_ids=frozenset(),
        keys=KeyChain(root(job), block_size),
        arrival=0.0,
        use_cache=use_cache,
    )


def _step(machine: Machine, scheduler: Scheduler, served: Served) -> None:
    step = scheduler.schedule(machine.clock())
    results = machine.executor.run(step.plan)
    now = machine.clock()
    served.step(step.plan)
    for sampled in scheduler.commit(step, results, now):
        assert sampled.choice is not None
        served.token(int(sampled.sequence.request.id), sampled.choice.token, now)
        if sampled.finish_reason is not None:
            scheduler.finish(sampled.sequence, sampled.finish_reason, now)


paged = partial(_scheduled, root=_one_root, use_cache=False)
"""Paged memory and continuous batching; nothing is shared."""

whole_prompt = partial(_scheduled, root=_root_of_prompt, use_cache=True)
"""Only a prompt that was there before, all of it, is found again."""

prefix_cache = partial(_scheduled, root=_one_root, use_cache=True)
"""What a node of kvmesh does."""

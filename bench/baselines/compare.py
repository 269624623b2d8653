"""All ways on the same requests; what a growing answer costs, without a KV cache and with one."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.baselines.contiguous import contiguous
from bench.baselines.job import Baseline, Job, Machine, Served
from bench.baselines.no_cache import no_cache
from bench.baselines.scheduled import paged, prefix_cache, whole_prompt
from bench.figures import Goal
from bench.load.config import LoadConfig
from bench.load.plan import make_plan
from bench.load.prompt import Writer
from cache_node.config import NodeConfig
from cache_node.load_executor import load_executor

BASELINES: dict[str, Baseline] = {
    "no KV cache": no_cache,
    "contiguous, static batches": contiguous,
    "paged, no prefix cache": paged,
    "whole prompts cached": whole_prompt,
    "kvmesh": prefix_cache,
}
OURS = "kvmesh"
BLOCK_SIZE, POOL_TOKENS, MAX_MODEL_LEN = 16, 4096, 1024
PREFIX, OWN = 256, 16  # tokens
OUTPUTS = (4, 8, 12, 24)  # tokens, in turns: answers differ in length
REPEATED = 4  # every so many-th prompt is one that was there before
GROWTH_PROMPT = 16  # tokens
GROWTH_GOALS = (1.1, 1.15)  # see Growth.dearer: at least without a cache, at most with one

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Amount:
    requests: int
    lengths: tuple[int, ...]  # of growing answers, each twice the one before


FULL, QUICK = Amount(16, (64, 128, 256)), Amount(8, (32, 64, 128))


@dataclass(frozen=True, slots=True)
class Growth:
    """Seconds of CPU time of one answer by its length."""

    lengths: tuple[int, ...]
    without: tuple[float, ...]
    cached: tuple[float, ...]

    @property
    def dearer(self) -> tuple[float, float]:
        """A token of the longest answer over one of half the length, without and with a cache: 1
        where an answer's cost grows as its length, towards 2 where it grows as the square.
        """
        without, cached = (each[-1] / each[-2] / 2 for each in (self.without, self.cached))
        return without, cached


@dataclass(frozen=True, slots=True)
class Comparison:
    served: dict[str, Served]
    growth: Growth

    @property
    def goals(self) -> list[Goal]:
        without, cached = self.growth.dearer
        least, most = GROWTH_GOALS
        ours = self.served[OURS]
        others = [each.output_rate for name, each in self.served.items() if name != OURS]
        rate = ours.output_rate / max(others)
        return [
            Goal("a token at twice the length, no KV cache", without, least, at_most=False),
            Goal("a token at twice the length, KV cache", cached, most),
            Goal("kvmesh's output over that of the best other", rate, 1.0, at_most=False),
        ]

    def as_json(self) -> dict[str, object]:
        growth = self.growth
        return {
            "ways": {
                name: {
                    "seconds": each.seconds,
                    "output_tokens_per_s": each.output_rate,
                    "ttft_p50_s": median(each.first),
                    "computed_tokens": each.computed,
                    "most_at_once": each.most,
                }
                for name, each in self.served.items()
            },
            "growth": {
                "output_tokens": growth.lengths,
                "seconds_without_cache": growth.without,
                "seconds_with_cache": growth.cached,
            },
        }


def compare_baselines(directory: Path, amount: Amount, say: Say, dtype: str = "auto") -> Comparison:
    """With the model in `directory`, one compute thread, in this process."""
    config = NodeConfig(
        dtype=dtype,
        block_size=BLOCK_SIZE,
        num_blocks=POOL_TOKENS // BLOCK_SIZE + 1,
        max_model_len=MAX_MODEL_LEN,
    )
    machine = Machine(config, load_executor(config, directory, lambda _stage, _fraction: None))
    prefix_cache(machine, make_jobs(2, seed=1))  # pages of the pool, caches
    served = {}
    for name, baseline in BASELINES.items():
        say(name)
        served[name] = baseline(machine, make_jobs(amount.requests))
    say("growing answers")
    return Comparison(served, _growth(machine, amount.lengths))


def make_jobs(count: int, seed: int = 0) -> list[Job]:
    """Prompts of the load generator's shared-prefix workload."""
    config = LoadConfig(
        requests=count, prefixes=1, prefix_tokens=PREFIX, prompt_tokens=OWN, seed=seed
    )
    writer = Writer(seed, config.vocabulary)
    prompts = [tuple(writer.token_ids(turn.prompt)) for turn in make_plan(config).turns]
    for number in range(REPEATED - 1, count, REPEATED):
        prompts[number] = prompts[0]
    return [Job(prompt, OUTPUTS[number % len(OUTPUTS)]) for number, prompt in enumerate(prompts)]


def _growth(machine: Machine, lengths: Sequence[int]) -> Growth:
    machine = replace(machine, clock=time.thread_time)
    prompt = make_jobs(1, seed=2)[0].prompt[:GROWTH_PROMPT]

    def seconds(baseline: Baseline) -> tuple[float, ...]:
        return tuple(baseline(machine, [Job(prompt, length)]).seconds for length in lengths)

    return Growth(tuple(lengths), seconds(no_cache), seconds(paged))

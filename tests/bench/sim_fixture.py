"""Small simulations, of conversations as in the recorded trace."""

import json
import random

from bench.sim.config import SimConfig
from bench.sim.run import run_simulation
from bench.trace import BLOCK_SIZE, TracedRequest


def conversations(count, seed=1):
    """Turns that repeat the ones before; all share their first block. One a second in the mean."""
    draw, open_ones, made, fresh, now = random.Random(seed), [], [], 0, 0.0
    for _ in range(count):
        now += draw.expovariate(1.0)
        blocks = (0,)
        if open_ones and draw.random() < 0.6:
            blocks = open_ones.pop(draw.randrange(len(open_ones)))
        grown = draw.randint(4, 16)
        blocks = (*blocks, *range(fresh + 1, fresh + grown + 1))
        fresh += grown
        if len(blocks) < 60:
            open_ones = [*open_ones, blocks][-100:]
        tokens = len(blocks) * BLOCK_SIZE - draw.randrange(BLOCK_SIZE)
        made.append(TracedRequest(now, tokens, draw.randint(20, 600), blocks))
    return made


def write_trace(path, count=100):
    entries = (
        {
            "timestamp": int(each.arrival * 1000),
            "input_length": each.prompt_tokens,
            "output_length": each.output_tokens,
            "hash_ids": list(each.blocks),
        }
        for each in conversations(count)
    )
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    return path


def simulated(trace, **fields):
    """The report of four nodes, as soon as it is asked for."""
    config = SimConfig(
        trace=trace,
        **{"nodes": 4, "requests": 100, "blocks": 400, "profile": "accelerator", **fields},
    )
    return run_simulation(config, lambda _policy: None)


def of_policy(report, name="prefix-aware"):
    return next(each for each in report["policies"] if each["policy"] == name)

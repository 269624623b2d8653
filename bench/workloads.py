"""What every engine is asked to do. Each call gives the figures of one run, by name.

Prompts depend on `seed` alone, so that all engines get the same and none has seen them before.
"""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

from bench.contestants import Contestant
from bench.openai_client import Answer, Message
from bench.requests import random_prompt
from bench.timing import Timing, output_rate

OUTPUT = 64  # tokens
PAIRS = 3  # of a cold and a warm request in one run
USERS, TURNS = 4, 6
SYSTEM_WORDS, USER_WORDS = 150, 40
WORDS = "the lamp keeper writes every storm into a blue log before the ship leaves for open sea"

Figures = dict[str, float]
Workload = Callable[[Contestant, int], Figures]


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure as a person reads it."""

    name: str
    label: str
    scale: float = 1.0


MEASURES = (
    Measure("decode_256", "one stream at 256, tok/s"),
    Measure("decode_1024", "one stream at 1024, tok/s"),
    Measure("output_8", "8 at once, output tok/s"),
    Measure("output_32", "32 at once, output tok/s"),
    Measure("cpu_256", "one stream at 256, CPU ms a token", 1e3),
    Measure("cpu_8", "8 at once, CPU ms a token", 1e3),
    Measure("cpu_32", "32 at once, CPU ms a token", 1e3),
    Measure("ttft_cold", "cold TTFT at 1024, ms", 1e3),
    Measure("cpu_cold", "cold request at 1024, CPU ms", 1e3),
    Measure("ttft_warm", "warm TTFT at 1024, ms", 1e3),
    Measure("chat_rate", "chat, output tok/s"),
    Measure("chat_cached", "chat, cached tokens"),
    Measure("memory", "resident, GiB", 1 / 2**30),
)


def decode(context: int) -> Workload:
    """One stream behind `context` tokens of prompt: tokens a second after the first."""

    def run(contestant: Contestant, seed: int) -> Figures:
        prompt = random_prompt(random.Random(f"decode {context} {seed}"), context)
        (timing,), cpu = _complete(contestant, [prompt], OUTPUT)
        figures = _named(f"cpu_{context}", cpu, OUTPUT)
        return {f"decode_{context}": timing.decode_rate, **figures}

    return run


def together(count: int) -> Workload:
    """`count` requests at once, 256 tokens in and 64 out: tokens of output a second."""

    def run(contestant: Contestant, seed: int) -> Figures:
        draw = random.Random(f"together {count} {seed}")
        prompts = [random_prompt(draw, 256) for _ in range(count)]
        timings, cpu = _complete(contestant, prompts, OUTPUT)
        figures = _named(f"cpu_{count}", cpu, OUTPUT * count)
        return {f"output_{count}": output_rate(timings), **figures}

    return run


def first_token(contestant: Contestant, seed: int) -> Figures:
    """1,024 tokens and 16 of its own, twice: the second time the 1,024 are known. The middle one of
    a few such pairs.
    """
    draw = random.Random(f"first token {seed}")
    pairs = [_cold_and_warm(contestant, draw) for _ in range(PAIRS)]
    return {name: median(pair[name] for pair in pairs) for name in pairs[0]}


def _cold_and_warm(contestant: Contestant, draw: random.Random) -> Figures:
    prefix = random_prompt(draw, 1024)
    (cold,), cpu = _complete(contestant, [prefix + random_prompt(draw, 16)], 2)
    (warm,), _ = _complete(contestant, [prefix + random_prompt(draw, 16)], 2)
    return {"ttft_cold": cold.ttft, "ttft_warm": warm.ttft, **_named("cpu_cold", cpu)}


def chat(contestant: Contestant, seed: int) -> Figures:
    """4 users of one assistant, 6 turns each, at once."""
    system = _words(random.Random(f"system {seed}"), SYSTEM_WORDS)

    def user(number: int) -> list[Answer]:
        draw = random.Random(f"user {number} {seed}")
        messages: list[Message] = [{"role": "system", "content": system}]
        answers: list[Answer] = []
        for _ in range(TURNS):
            messages.append({"role": "user", "content": _words(draw, USER_WORDS)})
            answer = contestant.chat(messages, OUTPUT)
            if answer is None:
                return []
            messages.append({"role": "assistant", "content": answer.text})
            answers.append(answer)
        return answers

    with ThreadPoolExecutor(USERS) as pool:
        timings: list[Timing] = [a.timing for each in pool.map(user, range(USERS)) for a in each]
    if not timings:
        return {}
    cached = sum(timing.cached for timing in timings)
    return {"chat_rate": output_rate(timings), "chat_cached": float(cached)}


def memory(contestant: Contestant, _seed: int) -> Figures:
    return _named("memory", contestant.memory())


WORKLOADS: tuple[Workload, ...] = (
    decode(256),
    decode(1024),
    together(8),
    together(32),
    first_token,
    chat,
    memory,
)


def _complete(
    contestant: Contestant, prompts: list[list[int]], output: int
) -> tuple[list[Timing], float | None]:
    """With the CPU time that it took, steadier than times on a machine that does other things."""
    before = contestant.cpu()
    timings = contestant.complete(prompts, output)
    after = contestant.cpu()
    return timings, None if before is None or after is None else after - before


def _named(name: str, figure: float | None, parts: int = 1) -> Figures:
    return {} if figure is None else {name: figure / parts}


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choices(WORDS.split(), k=count))

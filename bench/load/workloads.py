"""What kinds of sessions there are. None depends on what a server answers: where an answer is part
of the next prompt, it is a drawn one of the wanted length, as in recorded traces.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count

from bench.load.config import LoadConfig
from bench.load.prompt import Piece, Prompt
from bench.load.session import Session, Step
from bench.mix import draw_mix

DOCUMENTS_A_QUESTION = 3
SYSTEM_TOKENS = 48  # of the instruction before documents


def sessions_of(config: LoadConfig) -> Iterator[Session]:
    """The sessions of `config.workload`, without end but for mixed lengths."""
    return _WORKLOADS[config.workload](config, random.Random(f"{config.seed} sessions"))


def _shared_prefix(config: LoadConfig, draw: random.Random) -> Iterator[Session]:
    """One of a few system prompts, and a question of its own."""
    for number in count():
        prompt = (_system(config, draw), Piece(f"user/{number}", config.prompt_tokens))
        yield (Step(prompt, config.output_tokens),)


def _chat(config: LoadConfig, draw: random.Random) -> Iterator[Session]:
    """A user's turns; each prompt repeats the conversation so far."""
    for number in count():
        prompt: Prompt = (_system(config, draw),)
        steps: list[Step] = []
        for turn in range(config.turns):
            prompt = (*prompt, Piece(f"user/{number}/{turn}", config.prompt_tokens))
            after = turn - 1 if turn else None
            steps.append(Step(prompt, config.output_tokens, after, _pause(config, draw)))
            prompt = (*prompt, _answer(config, f"{number}/{turn}"))
        yield tuple(steps)


def _rag(config: LoadConfig, draw: random.Random) -> Iterator[Session]:
    """A question behind a few documents, best first; some documents are asked for often (Zipf)."""
    weights = [1 / rank for rank in range(1, config.documents + 1)]
    wanted = min(DOCUMENTS_A_QUESTION, config.documents)
    size = max(1, config.prefix_tokens // wanted)
    system = Piece("system", SYSTEM_TOKENS, "system")
    for number in count():
        chosen: dict[int, None] = {}
        while len(chosen) < wanted:
            chosen[draw.choices(range(config.documents), weights)[0]] = None
        documents = (Piece(f"document/{each}", size) for each in chosen)
        question = Piece(f"user/{number}", config.prompt_tokens)
        yield (Step((system, *documents, question), config.output_tokens),)


def _agents(config: LoadConfig, draw: random.Random) -> Iterator[Session]:
    """Agents that try `branches` ways at once behind each step and go on with the first of them.

    All ways share the steps so far; each gets a tool's answer of its own.
    """
    for number in count():
        prompt: Prompt = (_system(config, draw), Piece(f"task/{number}", config.prompt_tokens))
        steps, last = [Step(prompt, config.output_tokens)], 0
        for depth in range(1, config.turns):
            prompt = (*prompt, _answer(config, f"{number}/{depth}"))
            ways = [
                (*prompt, Piece(f"tool/{number}/{depth}/{way}", config.prompt_tokens))
                for way in range(config.branches)
            ]
            pause, first = _pause(config, draw), len(steps)
            steps += [Step(way, config.output_tokens, last, pause) for way in ways]
            prompt, last = ways[0], first
        yield tuple(steps)


def _random(config: LoadConfig, _draw: random.Random) -> Iterator[Session]:
    """Prompts that share nothing, as long as those of shared-prefix."""
    for number in count():
        prompt = (Piece(f"user/{number}", config.prefix_tokens + config.prompt_tokens),)
        yield (Step(prompt, config.output_tokens),)


def _mixed(config: LoadConfig, _draw: random.Random) -> Iterator[Session]:
    """Log-normal lengths, nothing shared; the flags are their means."""
    prompt_mean = config.prefix_tokens + config.prompt_tokens
    longest = 8 * (prompt_mean + config.output_tokens)
    mix = draw_mix(config.requests, longest, config.seed, prompt_mean, config.output_tokens)
    for number, shape in enumerate(mix):
        yield (Step((Piece(f"user/{number}", shape.prompt),), shape.output),)


def _system(config: LoadConfig, draw: random.Random) -> Piece:
    return Piece(f"system/{draw.randrange(config.prefixes)}", config.prefix_tokens, "system")


def _answer(config: LoadConfig, name: str) -> Piece:
    return Piece(f"assistant/{name}", config.output_tokens, "assistant")


def _pause(config: LoadConfig, draw: random.Random) -> float:
    return draw.expovariate(1 / config.think) if config.think else 0.0


_WORKLOADS: dict[str, Callable[[LoadConfig, random.Random], Iterator[Session]]] = {
    "shared-prefix": _shared_prefix,
    "chat": _chat,
    "rag": _rag,
    "agents": _agents,
    "random": _random,
    "mixed": _mixed,
}

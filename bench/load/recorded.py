"""Sessions of a recorded trace, at its own times."""

import random
from collections.abc import Iterator

from bench.load.config import LoadConfig
from bench.load.prompt import Piece, Prompt
from bench.load.session import Session, Step
from bench.trace import BLOCK_SIZE, TracedRequest, read_any_trace


def recorded_sessions(config: LoadConfig) -> Iterator[tuple[float, Session]]:
    """Arrival and request, times divided by `speed`, lengths multiplied by `length_scale`.

    Equal hash ids are equal pieces, so what two prompts share they share at any scale. Of the
    conversations, those that agree in their second block, `trace_share` are kept, whole: the
    share of tokens that can be hit stays about what it was.
    """
    assert config.trace is not None
    for number, request in enumerate(read_any_trace(config.trace)):
        if _kept(request, number, config):
            output = max(1, round(request.output_tokens * config.length_scale))
            prompt = _prompt(request, number, config.length_scale)
            yield request.arrival / config.speed, (Step(prompt, output),)


def _kept(request: TracedRequest, number: int, config: LoadConfig) -> bool:
    if config.trace_share == 1:
        return True
    conversation = request.blocks[1] if len(request.blocks) > 1 else f"alone {number}"
    return random.Random(f"{config.seed} kept {conversation}").random() < config.trace_share


def _prompt(request: TracedRequest, number: int, scale: float) -> Prompt:
    total = max(1, round(request.prompt_tokens * scale))
    if not request.blocks:  # nothing is known of what it shares
        return (Piece(f"user/{number}", total),)
    size = max(1, round(BLOCK_SIZE * scale))
    full = [Piece(f"block/{block}", size) for block in request.blocks[:-1]]
    rest = min(size, max(1, total - len(full) * size))
    return (*full, Piece(f"block/{request.blocks[-1]}", rest))

"""Engine requests for benchmarks that drive the scheduler or the engine without a network."""

import random
from collections.abc import Sequence

from cache_node.key_chain import KeyChain
from cache_node.sampling import SamplingParams
from cache_node.sequence import Request
from prefix_index.keys import KEY_BYTES

ROOT = bytes(KEY_BYTES)
VOCABULARY = range(1000, 40_000)  # ordinary tokens of the default model


def random_prompt(draw: random.Random, length: int) -> list[int]:
    return draw.choices(VOCABULARY, k=length)


def greedy_request(
    name: str, prompt: Sequence[int], max_tokens: int, block_size: int, arrival: float
) -> Request:
    """One that generates exactly `max_tokens` tokens."""
    return Request(
        id=name,
        prompt=prompt,
        params=SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True),
        eos_token_ids=frozenset(),
        keys=KeyChain(ROOT, block_size),
        arrival=arrival,
    )

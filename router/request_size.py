"""How much of a node a request takes: what is never served, and what is counted while it runs."""

from math import ceil

from kvmesh.errors import invalid
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.validation import resolve_max_tokens
from router.fleet import Model


class RequestSize:
    """Tokens of the prompt, most tokens of an output, how many outputs share the prompt, and what
    they take in blocks. Not to be changed.
    """

    __slots__ = ("_growth", "_prompt_blocks", "max_tokens", "prompt_tokens", "samples")

    def __init__(self, prompt_tokens: int, max_tokens: int, samples: int, block_size: int) -> None:
        self.prompt_tokens, self.max_tokens, self.samples = prompt_tokens, max_tokens, samples
        self._prompt_blocks = now = blocks_of(prompt_tokens, block_size)
        longest = blocks_of(prompt_tokens + max_tokens, block_size)
        own = longest - prompt_tokens // block_size  # a last one that is not full, copied
        self._growth = longest - now + (samples - 1) * own

    @classmethod
    def of(cls, params: pb.SamplingParams, prompt_tokens: int, block_size: int) -> "RequestSize":
        """Of a request whose max_tokens is set. Outputs count whether they are returned or not."""
        samples = params.best_of or params.n or 1
        return cls(prompt_tokens, params.max_tokens, samples, block_size)

    def blocks(self, growth_share: float = 1.0) -> int:
        """Blocks of the prompt, and so much of what the outputs can still take: a node counts the
        same way. Nothing is taken off for a cached prefix: its blocks are held from then on.
        """
        return self._prompt_blocks + ceil(growth_share * self._growth)


def blocks_of(tokens: int, block_size: int) -> int:
    """Whole blocks that so many tokens take."""
    return -(-tokens // block_size)


def fit_max_tokens(
    params: pb.SamplingParams, prompt_tokens: int, model: Model, largest_pool: int
) -> int:
    """Most tokens to generate: what was asked for, or what context and pool leave.

    Raises INVALID_ARGUMENT for a request that no node could hold even when it runs alone (A1, A2).
    """
    wanted = resolve_max_tokens(params, prompt_tokens, model.max_model_len)
    room = largest_pool * model.block_size - prompt_tokens
    if room < 1:
        most = largest_pool * model.block_size - 1
        raise invalid(
            "prompt", f"must have at most {most} tokens to fit a node, has {prompt_tokens}"
        )
    if params.HasField("max_tokens") and wanted > room:
        raise invalid(
            "max_tokens",
            f"must be at most {room}: no node has memory for prompt ({prompt_tokens}) and more",
        )
    return min(wanted, room)


def check_fits(size: RequestSize, largest_pool: int) -> None:
    """Raises INVALID_ARGUMENT for samples that no node could hold together."""
    needed = size.blocks()
    if needed > largest_pool:
        raise invalid(
            "n",
            f"{size.samples} samples of {size.max_tokens} tokens need {needed} blocks, the largest "
            f"node has {largest_pool}; ask for fewer, or for fewer tokens",
        )

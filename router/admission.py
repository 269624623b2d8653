"""What is refused before it costs anything: too much at once, and what no node could ever hold."""

from collections.abc import Iterator
from contextlib import contextmanager

from kvmesh.errors import exhausted, invalid
from kvmesh.v1 import generate_pb2 as pb
from kvmesh.validation import resolve_max_tokens
from router.fleet import Model

FULL_RETRY = 1.0
"""Seconds after which a client may come back when the router or all nodes are full."""


class Admission:
    """Bounds the requests in flight. A slot is held from arrival to the end of the answer."""

    def __init__(self, max_in_flight: int) -> None:
        self._max_in_flight = max_in_flight
        self.in_flight = 0

    @contextmanager
    def slot(self, count: int = 1) -> Iterator[None]:
        """Takes `count` slots. Raises RESOURCE_EXHAUSTED when there are fewer, INVALID_ARGUMENT
        when there are never so many.
        """
        if count > self._max_in_flight:
            most = self._max_in_flight
            raise invalid("prompt", f"must be at most {most} prompts, the router's limit in flight")
        if self.in_flight + count > self._max_in_flight:
            raise exhausted(
                f"the router has its limit of {self._max_in_flight} requests in flight", FULL_RETRY
            )
        self.in_flight += count
        try:
            yield
        finally:
            self.in_flight -= count


def fit_max_tokens(
    params: pb.SamplingParams, prompt_tokens: int, model: Model, largest_pool: int
) -> int:
    """Most tokens to generate: what was asked for, or what context and pool leave.

    Raises INVALID_ARGUMENT for a request that no node could hold even when it runs alone (A1).
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


def blocks_of(tokens: int, block_size: int) -> int:
    """Whole blocks that so many tokens take."""
    return -(-tokens // block_size)

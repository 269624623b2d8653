"""What all nodes of a fleet share. The first node that answers defines it, every later one must be
the same (D8).
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from kvmesh.errors import unavailable
from kvmesh.tokenizer import Tokenizer
from kvmesh.v1 import cache_node_pb2 as pb
from prefix_index.keys import root_key

# Fields of NodeInfo, and of its key scheme, in which nodes that compute the same KV must agree.
_SHARED = ("model", "model_fingerprint", "max_model_len", "vocab_size", "dtype")
_SHARED_SCHEME = ("version", "block_size", "kv_cache_dtype", "layout", "scale_fingerprint")

SALTS = 4096  # roots that are remembered; others are hashed again


@dataclass(frozen=True, slots=True)
class Model:
    """The served model: limits in tokens, its tokenizer, and the root of its block keys."""

    name: str
    max_model_len: int
    vocab_size: int
    block_size: int
    tokenizer: Tokenizer
    root_of: Callable[[bytes], bytes]  # the root of the block keys, by the tenant's salt
    created: int  # seconds since 1970, for lists of models


class Fleet:
    """Holds the model once a node has told it, for as long as the router lives."""

    def __init__(self) -> None:
        self._defining: pb.NodeInfo | None = None
        self._model: Model | None = None

    @property
    def defined(self) -> bool:
        return self._model is not None

    @property
    def model(self) -> Model:
        """Raises UNAVAILABLE until the first node has answered."""
        if self._model is None:
            raise unavailable("no cache node has answered yet, try again soon")
        return self._model

    def define(self, info: pb.NodeInfo, tokenizer: Tokenizer, now: float) -> None:
        """Takes the first node's word for the fleet; later calls change nothing.

        Raises ValueError for a key scheme that is not ours.
        """
        if self._model is not None:
            return
        root_of = functools.lru_cache(SALTS)(
            lambda salt: root_key(info.key_scheme, info.model_fingerprint, adapter="", salt=salt)
        )
        root_of(b"")
        self._model = Model(
            info.model,
            info.max_model_len,
            info.vocab_size,
            info.key_scheme.block_size,
            tokenizer,
            root_of,
            int(now),
        )
        self._defining = info

    def mismatch(self, info: pb.NodeInfo) -> str | None:
        """Why a node does not fit, with both values of each field; None if it does."""
        if self._defining is None:
            return None
        differences = _differences(self._defining, info, _SHARED) + _differences(
            self._defining.key_scheme, info.key_scheme, _SHARED_SCHEME
        )
        return f"not of this fleet: {'; '.join(differences)}" if differences else None


def _differences(
    ours: pb.NodeInfo | pb.KeyScheme, theirs: pb.NodeInfo | pb.KeyScheme, fields: tuple[str, ...]
) -> list[str]:
    pairs = ((field, getattr(ours, field), getattr(theirs, field)) for field in fields)
    return [
        f"{field} is {_show(its)}, the fleet's is {_show(own)}"
        for field, own, its in pairs
        if own != its
    ]


def _show(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else str(value)

"""Token ids on the wire: little-endian uint32, see design of the protos."""

import sys
from array import array
from collections.abc import Iterable


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32. Raises OverflowError for one outside [0, 2^32)."""
    return _little_endian(array("I", tokens)).tobytes()


def unpack_tokens(packed: bytes) -> list[int]:
    """The token ids in `packed`. Raises ValueError when its length is not a multiple of 4."""
    values = array("I")
    values.frombytes(packed)
    return _little_endian(values).tolist()


def _little_endian(values: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        values.byteswap()
    return values

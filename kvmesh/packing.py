"""Token ids on the wire: little-endian uint32, see design of the protos."""

import functools
import sys
from array import array
from collections.abc import Iterable

Tokens = array  # of "I": 4 bytes a token, where a list takes up to 40


def tokens_of(values: Iterable[int]) -> "Tokens[int]":
    """Raises OverflowError for a token id outside [0, 2^32)."""
    return array("I", values)


def pack_tokens(tokens: Iterable[int]) -> bytes:
    """Token ids as little-endian uint32. Raises OverflowError for one outside [0, 2^32)."""
    return _little_endian(array("I", tokens)).tobytes()


def unpacked(packed: bytes | bytearray) -> "Tokens[int]":
    """The token ids in `packed`. Raises ValueError when its length is not a multiple of 4."""
    values = array("I")
    values.frombytes(packed)
    return _little_endian(values)


def unpack_tokens(packed: bytes) -> list[int]:
    """The same as a list."""
    return unpacked(packed).tolist()


def all_below(packed: bytes, limit: int) -> bool:
    """Whether every token id in `packed` is below `limit`; one of 2^31 or more never is.

    The ids are lanes of one large number. What is added to each sets the lane's highest bit unless
    it is below: 4 µs for 1,024 ids, the maximum of a list takes 25.
    """
    addend, highest = _lanes(limit)
    for start in range(0, len(packed), 4 * _LANES):
        ids = int.from_bytes(packed[start : start + 4 * _LANES], "little")
        if (ids | ids + addend) & highest:
            return False
    return True


_LANES = 1024


@functools.lru_cache(maxsize=4)
def _lanes(limit: int) -> tuple[int, int]:
    """In each lane what is missing to 2^31, and the highest bit."""
    ones = int.from_bytes(b"\1\0\0\0" * _LANES, "little")
    return ones * (2**31 - min(limit, 2**31)), ones << 31


def _little_endian(values: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        values.byteswap()
    return values

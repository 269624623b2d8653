"""The fields of a serialized protobuf message one after the other, without parsing the whole."""

from collections.abc import Iterator

# https://protobuf.dev/programming-guides/encoding/#structure
_VARINT, _FIXED64, _LENGTH, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10


def wire_fields(raw: memoryview) -> Iterator[tuple[int, memoryview | None]]:
    """(number, value) of each field at the top level, the value None unless it has a length.

    What is inside groups, which no message of ours has, is skipped. Raises ValueError at the place
    where `raw` stops to be a message.
    """
    at = depth = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, kind = tag >> 3, tag & 7
        value = None
        if kind == _VARINT:
            _, at = _varint(raw, at)
        elif kind == _LENGTH:
            length, at = _varint(raw, at)
            value, at = raw[at : at + length], at + length
        elif kind in _FIXED:
            at += _FIXED[kind]
        elif kind == _START_GROUP:
            depth += 1
        elif kind == _END_GROUP and depth:
            depth -= 1
            continue
        else:
            raise ValueError(f"a field has the wire type {kind}")
        if at > len(raw):
            raise ValueError("a field ends behind the message")
        yield number, None if depth else value
    if depth:
        raise ValueError("a group has no end")


def _varint(raw: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and the place behind it."""
    number = 0
    for place, byte in enumerate(raw[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, at + place + 1
    raise ValueError("a number does not end")

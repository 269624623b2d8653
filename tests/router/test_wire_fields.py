"""The walk over a message's fields sees what protobuf sees."""

import random

import pytest
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from router.wire_fields import wire_fields

LENGTH = 2  # wire type


def walked(raw):
    return [
        (number, None if value is None else bytes(value))
        for number, value in wire_fields(memoryview(raw))
    ]


def test_groups_are_passed_over():
    group = b"\x0b\x10\x05\x1a\x01x\x0c"  # field 1: {2: 5, 3: "x"}
    inside = [number for number, value in walked(group + b"\x22\x01y") if value is not None]
    assert inside == [4]


@pytest.mark.parametrize("raw", [b"\x0b", b"\x0c", b"\x0f", b"\x0a\x05abc", b"\x08"])
def test_what_is_no_message_is_an_error(raw):
    with pytest.raises(ValueError, match=r"field|group|number"):
        walked(raw)


def test_it_agrees_with_protobuf_on_noise():
    rng, agreed = random.Random(5), 0
    for _ in range(20_000):
        raw = rng.randbytes(rng.randint(0, 12))
        try:
            message = Empty.FromString(raw)
        except DecodeError:
            continue  # protobuf is stricter: a group's end must be of its start's number
        expected = [
            (field.field_number, field.data) for field in UnknownFieldSet(message)
            if field.wire_type == LENGTH
        ]  # fmt: skip
        assert [(n, value) for n, value in walked(raw) if value is not None] == expected
        agreed += 1
    assert agreed > 100

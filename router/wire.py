"""Reads requests from raw bytes, so that what is wrong with them can be said by field.

grpc answers bytes that do not parse with a bare INTERNAL; protobuf says no more than "bad UTF-8".
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from kvmesh.errors import RequestError, invalid
from router.wire_fields import wire_fields

M = TypeVar("M", bound=Message)

LOOKED_AT = 10_000
"""Fields of a bad message among which the wrong one is looked for. It has millions if its sender
wants it to, and everybody's streams wait meanwhile.
"""


def parse(raw: bytes, kind: type[M], max_bytes: int) -> M:
    """The message in `raw`. Raises INVALID_ARGUMENT with the path of the field that is too long or
    malformed, or of the whole when the field is hard to find.
    """
    descriptor = cast(Descriptor, kind.DESCRIPTOR)  # the stub knows two classes of them
    if len(raw) > max_bytes:
        raise _too_large(raw, descriptor, max_bytes)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise _Search().problem(memoryview(raw), descriptor, "") or _malformed(
            "request", descriptor
        ) from None


def _too_large(raw: bytes, descriptor: Descriptor, max_bytes: int) -> RequestError:
    lengths: Counter[str] = Counter()
    with suppress(ValueError):  # what is known until there is enough to name one
        for field, value in _Search().known_fields(memoryview(raw), descriptor):
            lengths[field.name] += len(value)
    largest = max(lengths, key=lambda name: lengths[name], default="request")
    return invalid(
        largest,
        f"the request must have at most {max_bytes} bytes, it has {len(raw)}: send less here",
    )


def _malformed(path: str, descriptor: Descriptor) -> RequestError:
    return invalid(path, f"is not a {descriptor.full_name} message")


class _Search:
    """For the field that keeps bytes from being a message; sees LOOKED_AT fields, then ends."""

    def __init__(self) -> None:
        self._left = LOOKED_AT

    def problem(self, raw: memoryview, descriptor: Descriptor, path: str) -> RequestError | None:
        """The first one; None when all that is known of it, and was seen, is right."""
        seen: Counter[str] = Counter()
        try:
            for field, value in self.known_fields(raw, descriptor):
                name = f"{field.name}[{seen[field.name]}]" if field.is_repeated else field.name
                seen[field.name] += 1
                if error := self._field_problem(field, value, f"{path}.{name}" if path else name):
                    return error
        except ValueError:
            return _malformed(path or "request", descriptor)
        return None

    def known_fields(
        self, raw: memoryview, descriptor: Descriptor
    ) -> Iterator[tuple[FieldDescriptor, memoryview]]:
        """Those that have a length. Raises ValueError where `raw` stops to be a message."""
        known = descriptor.fields_by_number
        for number, value in wire_fields(raw):
            self._left -= 1
            if self._left < 0:
                return
            if number in known and value is not None:
                yield known[number], value

    def _field_problem(
        self, field: FieldDescriptor, value: memoryview, path: str
    ) -> RequestError | None:
        if field.message_type is not None:
            return self.problem(value, field.message_type, path)
        if field.type == FieldDescriptor.TYPE_STRING:
            try:
                str(value, "utf-8")
            except UnicodeDecodeError as error:
                return invalid(path, f"must be valid UTF-8, is not at byte {error.start}")
        return None

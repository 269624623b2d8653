"""Reads requests from raw bytes, so that what is wrong with them can be said by field.

grpc answers bytes that do not parse with a bare INTERNAL; protobuf says no more than "bad UTF-8".
"""

from collections.abc import Iterable
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from kvmesh.errors import RequestError, invalid

M = TypeVar("M", bound=Message)


def parse(raw: bytes, kind: type[M], max_bytes: int) -> M:
    """The message in `raw`. Raises INVALID_ARGUMENT with the path of the field that is too long or
    malformed.
    """
    if len(raw) > max_bytes:
        raise _too_large(raw, _descriptor(kind), max_bytes)
    try:
        return kind.FromString(raw)
    except DecodeError:
        raise _problem(raw, _descriptor(kind), "") or invalid(
            "request", f"is not a {kind.DESCRIPTOR.full_name} message"
        ) from None


def _descriptor(kind: type[Message]) -> Descriptor:
    return cast(Descriptor, kind.DESCRIPTOR)  # the stub knows two classes of them


def _too_large(raw: bytes, descriptor: Descriptor, max_bytes: int) -> RequestError:
    fields = _fields(raw, descriptor) or ()
    lengths = {field.name: len(value) for field, value in fields if isinstance(value, bytes)}
    field = max(lengths, key=lambda name: lengths[name], default="request")
    return invalid(
        field, f"the request must have at most {max_bytes} bytes, it has {len(raw)}: send less here"
    )


def _problem(raw: bytes, descriptor: Descriptor, path: str) -> RequestError | None:
    """The first field that keeps `raw` from being a message; None when all that is known of it is
    right.
    """
    fields = _fields(raw, descriptor)
    if fields is None:
        return invalid(path or "request", f"is not a {descriptor.full_name} message")
    seen: dict[str, int] = {}
    for field, value in fields:
        place = seen[field.name] = seen.get(field.name, -1) + 1
        name = f"{field.name}[{place}]" if field.is_repeated else field.name
        if error := _field_problem(field, value, f"{path}.{name}" if path else name):
            return error
    return None


def _field_problem(field: FieldDescriptor, value: Any, path: str) -> RequestError | None:
    if not isinstance(value, bytes):
        return None
    if field.message_type is not None:
        return _problem(value, field.message_type, path)
    if field.type == FieldDescriptor.TYPE_STRING:
        try:
            value.decode()
        except UnicodeDecodeError as error:
            return invalid(path, f"must be valid UTF-8, is not at byte {error.start}")
    return None


def _fields(raw: bytes, descriptor: Descriptor) -> list[tuple[FieldDescriptor, Any]] | None:
    """The fields on the top level of `raw` that `descriptor` knows; None when it is no message at
    all.
    """
    empty = Empty()
    try:
        empty.MergeFromString(raw)
    except DecodeError:
        return None
    known = descriptor.fields_by_number
    return [
        (known[each.field_number], each.data)
        for each in cast(Iterable[Any], UnknownFieldSet(empty))
        if each.field_number in known
    ]

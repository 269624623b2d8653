"""What would break a peer that speaks the committed contract: compares two descriptor sets."""

from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2

Named = dict[str, Any]


def breaking_changes(old: bytes, new: bytes) -> list[str]:
    """One line for each change of `new` against `old` that old peers cannot bear.

    Both are serialised FileDescriptorSets. Breaking is: a removed message, field, enum value,
    service or method; a field whose type, label, presence or name changed (names are the JSON
    form); a method whose types or streaming changed. A field may go when its number is reserved.
    """
    before, after = _index(old), _index(new)
    return [
        line for name in sorted(before) for line in _compare(name, before[name], after.get(name))
    ]


def _index(data: bytes) -> Named:
    files = descriptor_pb2.FileDescriptorSet.FromString(data)
    return dict(entry for file in files.file for entry in _elements(file))


def _elements(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, Any]]:
    for message in file.message_type:
        yield from _messages(file.package, message)
    for enum in file.enum_type:
        yield f"{file.package}.{enum.name}", enum
    for service in file.service:
        yield f"{file.package}.{service.name}", service


def _messages(scope: str, message: descriptor_pb2.DescriptorProto) -> Iterator[tuple[str, Any]]:
    name = f"{scope}.{message.name}"
    yield name, message
    for enum in message.enum_type:
        yield f"{name}.{enum.name}", enum
    for nested in message.nested_type:
        yield from _messages(name, nested)


def _compare(name: str, old: Any, new: Any) -> Iterator[str]:
    if new is None or type(new) is not type(old):
        yield f"{name}: removed"
    elif isinstance(old, descriptor_pb2.DescriptorProto):
        yield from _compare_fields(name, old, new)
    elif isinstance(old, descriptor_pb2.EnumDescriptorProto):
        kept = {(value.name, value.number) for value in new.value}
        yield from (
            f"{name}.{v.name}: removed or renumbered"
            for v in old.value
            if (v.name, v.number) not in kept
        )
    else:
        yield from _compare_methods(name, old, new)


def _compare_fields(name: str, old: Any, new: Any) -> Iterator[str]:
    fields = {field.number: field for field in new.field}
    for field in old.field:
        now = fields.get(field.number)
        if now is None:
            if not any(span.start <= field.number < span.end for span in new.reserved_range):
                yield f"{name}.{field.name}: removed, and its number {field.number} is not reserved"
        elif _shape(now) != _shape(field):
            yield f"{name}.{field.name}: name, type, label or presence changed"


def _shape(field: Any) -> tuple[Any, ...]:
    in_oneof = field.HasField("oneof_index")
    return field.name, field.type, field.type_name, field.label, field.proto3_optional, in_oneof


def _compare_methods(name: str, old: Any, new: Any) -> Iterator[str]:
    methods = {method.name: method for method in new.method}
    for method in old.method:
        now = methods.get(method.name)
        if now is None:
            yield f"{name}.{method.name}: removed"
        elif now.SerializeToString(deterministic=True) != method.SerializeToString(
            deterministic=True
        ):
            yield f"{name}.{method.name}: types or streaming changed"

"""Which changes of the contract count as breaking, seen from the protos as they are written."""

import importlib.util
import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[2]

BASE = """
syntax = "proto3";
package shop.v1;
message Order {
  string id = 1;
  optional uint32 count = 2;
  oneof payment { string card = 3; string voucher = 4; }
  repeated string notes = 5;
  State state = 6;
  message Line { string item = 1; }
  enum Kind { KIND_UNSPECIFIED = 0; KIND_GIFT = 1; }
}
enum State { STATE_UNSPECIFIED = 0; STATE_PAID = 1; }
service Shop {
  rpc Place(Order) returns (Order);
  rpc Watch(Order) returns (stream Order);
}
"""


def load_script(name):
    spec = importlib.util.spec_from_file_location(f"protos_{name}", ROOT / "protos" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


breaking_changes = load_script("breaking").breaking_changes


@pytest.fixture
def changes(tmp_path):
    """Compiles the contract before and after replacing `old` by `new`, and compares."""

    def compile_(source, name):
        (tmp_path / f"{name}.proto").write_text(source)
        out = tmp_path / f"{name}.binpb"
        status = protoc.main(
            ["protoc", f"-I{tmp_path}", f"--descriptor_set_out={out}", f"{name}.proto"]
        )
        assert status == 0
        return out.read_bytes()

    def compare(old, new):
        assert old in BASE
        return breaking_changes(compile_(BASE, "before"), compile_(BASE.replace(old, new), "after"))

    return compare


BREAKING = {
    "field removed": ("string id = 1;", "", "shop.v1.Order.id"),
    "field renumbered": ("string id = 1;", "string id = 9;", "shop.v1.Order.id"),
    "field renamed": ("string id = 1;", "string name = 1;", "shop.v1.Order.id"),
    "field type changed": ("string id = 1;", "bytes id = 1;", "shop.v1.Order.id"),
    "field made repeated": ("string id = 1;", "repeated string id = 1;", "shop.v1.Order.id"),
    "field made optional": ("string id = 1;", "optional string id = 1;", "shop.v1.Order.id"),
    "field left its oneof": (
        "string card = 3; string voucher = 4; }",
        "string card = 3; } string voucher = 4;",
        "shop.v1.Order.voucher",
    ),
    "message removed": ("message Line { string item = 1; }", "", "shop.v1.Order.Line"),
    "nested field renumbered": ("string item = 1;", "string item = 2;", "shop.v1.Order.Line.item"),
    "nested enum removed": (
        "enum Kind { KIND_UNSPECIFIED = 0; KIND_GIFT = 1; }",
        "",
        "shop.v1.Order.Kind",
    ),
    "enum value removed": (" STATE_PAID = 1;", "", "shop.v1.State.STATE_PAID"),
    "enum value renumbered": ("STATE_PAID = 1", "STATE_PAID = 2", "shop.v1.State.STATE_PAID"),
    "method removed": ("rpc Place(Order) returns (Order);", "", "shop.v1.Shop.Place"),
    "method now streams": (
        "Place(Order) returns (Order)",
        "Place(Order) returns (stream Order)",
        "shop.v1.Shop.Place",
    ),
    "method streams no more": (
        "Watch(Order) returns (stream Order)",
        "Watch(Order) returns (Order)",
        "shop.v1.Shop.Watch",
    ),
    "method takes another type": (
        "Place(Order)",
        "Place(Order.Line)",
        "shop.v1.Shop.Place",
    ),
    "service removed": (BASE[BASE.index("service") :], "", "shop.v1.Shop"),
}

HARMLESS = {
    "nothing": ("string id = 1;", "string id = 1;"),
    "comment": ("string id = 1;", "// Its name.\nstring id = 1;"),
    "field added": ("string id = 1;", "string id = 1; string shop = 7;"),
    "field reserved": ("string id = 1;", "reserved 1;"),
    "enum value added": ("STATE_PAID = 1;", "STATE_PAID = 1; STATE_SENT = 2;"),
    "message added": ("service", "message Receipt { string id = 1; }\nservice"),
    "method added": ("service Shop {", "service Shop {\n  rpc Ask(Order) returns (Order);"),
    "service added": (
        "service Shop",
        "service Help { rpc Ask(Order) returns (Order); }\nservice Shop",
    ),
}


@pytest.mark.parametrize(("old", "new", "name"), BREAKING.values(), ids=BREAKING)
def test_a_breaking_change_is_named(changes, old, new, name):
    assert [line.split(":")[0] for line in changes(old, new)] == [name]


@pytest.mark.parametrize(("old", "new"), HARMLESS.values(), ids=HARMLESS)
def test_a_harmless_change_passes(changes, old, new):
    assert changes(old, new) == []


def test_the_first_contract_breaks_nobody(changes):
    assert breaking_changes(b"", (ROOT / "protos/descriptors.binpb").read_bytes()) == []

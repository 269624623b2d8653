"""The packed form of block events."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.v1.cache_node_pb2 import TIER_CPU, TIER_GPU, TIER_UNSPECIFIED
from prefix_index.events import Cleared, Removed, Stored, pack, pack_held, runs, unpack
from tests.prefix_index.strategies import KEYS, events


@given(st.lists(events))
def test_round_trip(sequence):
    assert unpack(pack(sequence)) == sequence


@given(st.binary(max_size=80))
def test_any_bytes_give_events_or_a_value_error(data):
    try:
        found = unpack(data)
    except ValueError:
        return
    assert unpack(pack(found)) == found


@given(st.lists(events, min_size=1), st.data())
def test_cut_or_changed_bytes_never_raise_anything_else(sequence, data):
    packed = bytearray(pack(sequence))
    packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    with contextlib.suppress(ValueError):
        unpack(cut)


def test_a_state_packs_like_its_events():
    held = {TIER_GPU: KEYS[:3], TIER_CPU: KEYS[3:4]}
    flat = [Stored(key, tier) for tier, keys in held.items() for key in keys]
    assert pack_held(held) == pack(flat)


def test_equal_neighbours_share_a_run():
    packed = pack([Stored(key, TIER_GPU) for key in KEYS])
    assert len(runs(packed)) == 1
    assert len(packed) == 1 + 6 + 16 * len(KEYS)


def test_stored_is_not_removed():
    assert Stored(KEYS[0], TIER_GPU) != Removed(KEYS[0], TIER_GPU)


@pytest.mark.parametrize(
    "packed",
    [b"", b"\x02", b"\x01\x01", b"\x01\x01\x01\x01\0\0\0", b"\x01\x03\x01\0\0\0\0"],
    ids=["empty", "version", "head", "keys", "cleared"],
)
def test_malformed(packed):
    with pytest.raises(ValueError, match="packed events"):
        unpack(packed)


def test_wrong_events_are_not_packed():
    with pytest.raises(ValueError, match="key: must be 16 bytes"):
        pack([Stored(b"short", TIER_GPU)])
    with pytest.raises(ValueError, match="tier: must be one of"):
        pack([Stored(KEYS[0], TIER_UNSPECIFIED)])
    assert unpack(pack([Cleared()])) == [Cleared()]

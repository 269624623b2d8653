"""The hash chain of block keys. The golden values may change only together with SCHEME_VERSION."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.v1 import cache_node_pb2
from prefix_index.keys import KEY_BYTES, SCHEME_VERSION, block_keys, next_key, root_key

SCHEME = cache_node_pb2.KeyScheme(
    version=SCHEME_VERSION, block_size=16, kv_cache_dtype="auto", layout="nlkhd-v1"
)
TOKENS = struct.pack("<40I", *range(40))


def test_golden_values():
    root = root_key(SCHEME, b"fingerprint", "", b"salt")
    assert root.hex() == "be328e00355ca6ec864084e612cbce28"
    assert [key.hex() for key in block_keys(root, TOKENS, 16)] == [
        "5bff344f96a01e1199886b7546c0b3ec",
        "2005d3a49b809e554a2a8aaff71162f0",
    ]


def test_only_whole_blocks_have_keys():
    assert [len(block_keys(bytes(16), TOKENS[: 4 * n], 16)) for n in (0, 15, 16, 31, 32)] == [
        0,
        0,
        1,
        1,
        2,
    ]


@given(st.lists(st.integers(0, 2**32 - 1), max_size=80), st.sampled_from([1, 8, 16, 32]))
def test_block_keys_are_the_chain_of_next_key(token_ids, block_size):
    packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    parent, expected = bytes(KEY_BYTES), []
    for start in range(0, len(token_ids) // block_size * block_size, block_size):
        parent = next_key(parent, packed[4 * start : 4 * (start + block_size)])
        expected.append(parent)
    assert block_keys(bytes(KEY_BYTES), packed, block_size) == expected


def test_every_part_of_the_scheme_counts():
    def root(fingerprint=b"f", adapter="", salt=b"", **scheme):
        changed = cache_node_pb2.KeyScheme()
        changed.CopyFrom(SCHEME)
        for name, value in scheme.items():
            setattr(changed, name, value)
        return root_key(changed, fingerprint, adapter, salt)

    roots = [
        root(),
        root(fingerprint=b"g"),
        root(adapter="lora"),
        root(salt=b"tenant"),
        root(block_size=32),
        root(kv_cache_dtype="fp8"),
        root(layout="other"),
        root(scale_fingerprint=b"scales"),
    ]
    assert len(set(roots)) == len(roots)


@given(st.binary(max_size=8), st.text(max_size=4), st.binary(max_size=8))
def test_moving_a_byte_between_parts_gives_another_root(fingerprint, adapter, salt):
    longer = root_key(SCHEME, fingerprint + b"x", adapter, salt)
    assert longer != root_key(SCHEME, fingerprint, "x" + adapter, salt)
    assert longer != root_key(SCHEME, fingerprint, adapter, b"x" + salt)


def test_a_root_is_never_a_block_key():
    root = root_key(SCHEME, b"", "", b"")
    assert next_key(b"", b"") != root


def test_wrong_input_is_named():
    with pytest.raises(ValueError, match="block_size: must be at least 1"):
        block_keys(bytes(16), TOKENS, 0)
    with pytest.raises(ValueError, match="token_ids: must be packed as uint32"):
        block_keys(bytes(16), TOKENS[:-1], 16)
    with pytest.raises(ValueError, match=r"key_scheme\.version: must be 1, is 2"):
        root_key(cache_node_pb2.KeyScheme(version=2), b"", "", b"")

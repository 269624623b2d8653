"""D: block keys are the same everywhere, and name a position, not only its content."""

import os
import subprocess
import sys
from pathlib import Path

from prefix_index.keys import block_keys

PROGRAM = """
import struct
from kvmesh.v1.cache_node_pb2 import KeyScheme
from prefix_index.keys import SCHEME_VERSION, block_keys, root_key
scheme = KeyScheme(version=SCHEME_VERSION, block_size=16, kv_cache_dtype="auto", layout="l")
root = root_key(scheme, b"fingerprint", "", b"tenant")
print([key.hex() for key in block_keys(root, struct.pack("<64I", *range(64)), 16)])
"""


def keys_of_a_process(hash_seed):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | {"PYTHONHASHSEED": hash_seed},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_d6_two_processes_with_other_hash_seeds_make_the_same_keys():
    one, other = keys_of_a_process("1"), keys_of_a_process("random")
    assert one == other
    assert one.count("'") == 2 * 4


def test_d7_a_repeating_pattern_has_a_key_per_position():
    same_block = (7).to_bytes(4, "little") * 16
    keys = block_keys(bytes(16), same_block * 64, 16)
    assert len(set(keys)) == 64
